"""Do the Controllers know this broker, under which id, and may its log be believed?"""
