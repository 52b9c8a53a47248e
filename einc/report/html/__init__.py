"""One page of HTML that a person looks at: what is known of a plan, a machine or an exchange program, as pictures.

Every module but `page` makes a part of the page's data out of a plan: plain lists and numbers, which the scripts in
`static/` draw. The numbers are those of the document of `einc explain`, which the page contains whole. `page` puts the
data, the scripts and the styles into one file, which asks for nothing else.
"""
