input("Your password: ")
