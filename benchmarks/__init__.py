"""What does bounding a call cost, beside what a user would pick instead?"""
