"""CoFedMID: a coalition trains on class subsets, recycles some excluded samples and adds noise that
cancels.
"""
