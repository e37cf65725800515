//! A program written for the published crate compiles against ours: the same
//! source, compiled against both.

#![expect(clippy::unwrap_used, reason = "tests")]

macro_rules! against {
    ($name:ident, $krate:ident) => {
        mod $name {
            use $krate as wire;
            include!("api/surface.rs");
        }
    };
}

against!(ours, ts_wire);
against!(theirs, published);

#[test]
fn the_same_program_runs_on_both() {
    ours::traits();
    theirs::traits();
    ours::signatures();
    theirs::signatures();
    ours::own_type();
    theirs::own_type();
}

#[test]
fn errors_are_of_the_same_kind() {
    assert_eq!(ours::errors(), theirs::errors());
}
