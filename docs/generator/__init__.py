"""Pages made from the code: commands, recipes, JSON outputs, security."""
