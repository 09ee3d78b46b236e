"""What is done to samples: recorded methods, functions, normalising, random numbers."""
