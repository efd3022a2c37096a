"""One function per check, by the kind of component; ``testing/table.py`` lists them."""
