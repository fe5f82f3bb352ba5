"""What do the findings of an audit amount to: what is lost, shown how, mended by what, new since when?"""
