"""Records to boards: Markdown tables and plots. Imports no torch."""
