"""A run on one page: whether its curves are right, in words, the curves, and replies side by side.

- **The rules are a table** (`verdict`) that docs/READING_A_RUN.md shows; a test reads the limits in the document.
- **All text of a run is data**: it lies on the page as JSON, and becomes text there, never HTML.
"""
