"""An editor goes through a suite of edits, from the untouched base; no state is read or changed.

Read from top to bottom:

run         a run from its options to its report: the parts below in their order
plan        options, and everything that decides the numbers, known before a model is loaded; the keys of the cache
protocols   which edits are scored after which edit, and what is reported of these scores
anchors     the questions whose answers an editor holds
steps       the loop: each edit, or all together at the end, and what is scored after it
costs       memory while an edit is written, and the time to decide on a question
journal     what each step wrote down, and where an interrupted run resumes
references  the answers that locality compares with
report      the scores of the journal as metrics with intervals
editors     M-ORE as an editor of a run; other packages bring theirs by entry points
"""
