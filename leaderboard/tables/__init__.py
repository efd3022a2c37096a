"""Statistics to tables: columns with units, values with intervals, captions. Data that any report
can draw.
"""
