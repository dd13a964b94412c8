"""Which of the SDK's methods make a call, and how is each one caught? The only package that imports tinker."""
