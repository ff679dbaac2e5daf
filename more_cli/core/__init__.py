"""The paper's equations on tensors: the frozen basis A, the recursion P, the write into B.

Letters and equation labels are those of M-ORE (ICML 2026). One site is a linear map W (d_out, d_in) with

    y = W x + s B (A x),    A (r, d_in),    B (d_out, r),    P (r, r),    z = A x (r,).
"""
