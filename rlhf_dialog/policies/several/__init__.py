"""What goes beyond one task: `knowledge`, a lookup behind a policy, and the encyclopedias that it asks (`encyclopedia`, and
`mediawiki` over the network). A connection is opened only where a setting says so; what a page says is shown as text, on one
line, and cannot steer a terminal.
"""
