"""Edge functions: texts of users, read into graphs of operations, differentiated, and made into small programs."""
