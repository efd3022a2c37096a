"""Active attacks: malicious clients poison the training so that the model itself tells members from
non-members.
"""
