//! Parts of the half that makes calls, for the dialects of RFC 5666: padded calls, and replies by Read list.

mod padding;
mod reply_pulls;
