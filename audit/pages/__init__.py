"""How is the outcome shown: findings as lines of JSON, and as one page of HTML?"""
