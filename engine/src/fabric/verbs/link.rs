//! Where the two halves meet: what the control half made for a connection, and what each half tells
//! the other about it.
