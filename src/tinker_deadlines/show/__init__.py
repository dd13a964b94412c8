"""How do people see what happens? While a script runs, when it has ended, and when they ask. Imports nothing heavy."""
