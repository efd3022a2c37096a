"""Functions of the checks, by kind of component; ``testing/table.py`` lists them."""
