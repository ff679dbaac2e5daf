"""The world of the embedded models: pictures, questions and facts, all of them functions of integers."""
