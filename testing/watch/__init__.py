"""What a component does while it is at work: what it is handed and answers, draws, opens and remembers."""
