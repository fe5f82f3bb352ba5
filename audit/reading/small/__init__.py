"""What do the small files beside a log say: tables, epochs, marks, and who wrote them?"""
