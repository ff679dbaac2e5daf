"""`more review`: a page on this machine that shows the edits, asks the model, and applies and reverts corrections."""
