"""Everything that is shown to a person: text, tables, cards, drawings, pictures, JSON.

No file here reads data. Matplotlib is imported when a picture is drawn, so other rooms import the
files of pictures inside the functions that draw.
"""
