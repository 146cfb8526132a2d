"""attnlab, an attention laboratory: what does this idea about attention do, and is that true?"""
