"""Reports: tables in the published form, figures with their tables, one self-contained page."""
