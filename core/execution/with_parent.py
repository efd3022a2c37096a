"""Imported first by the server that workers are forked from: it ends with its parent, even in the middle of its imports."""

from fedbench.core.apart.parent import end_with_parent

end_with_parent()
