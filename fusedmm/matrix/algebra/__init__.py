"""What a CSR can do as a matrix: parts, sums, products by entries, self loops, other forms. ``CSR`` inherits all of it.

Two orders of entries occur. A result with the structure of its operand keeps the caller's edge order. A result with a
structure of its own has its values in the order of its rows, unless its text says otherwise. Whatever is added up is an
SpMM with a matrix of ones, so that it has one order of summation and gradients of any order.
"""
