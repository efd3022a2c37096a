"""A run: planned, trained, judged, recorded; in processes of its own, on one machine or several."""
