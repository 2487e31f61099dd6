//! The generated Rust, and the errors, of small descriptions. That generated Rust compiles and codes as C
//! does is seen in `xdr/suite`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

use proptest::collection::vec;
use proptest::prelude::*;
use spinrpc_xdrgen::Generator;
use spinrpc_xdrgen::model::{Kind, Ty};

fn rust(text: &str) -> String {
    Generator::new().rust("t.x", text).unwrap()
}

fn error(text: &str) -> String {
    Generator::new().rust("t.x", text).unwrap_err().to_string()
}

#[test]
fn the_example_comes_out_as_it_is_written_down() {
    let text = include_str!("golden/example.x");
    let generated = Generator::new().rust("example.x", text).unwrap();
    assert_eq!(generated, include_str!("golden/example.rs"), "see tests/golden");
}

#[test]
fn mistakes_in_the_grammar_are_named_with_place_and_remedy() {
    let cases = [
        ("struct a { int b }", "1:18: unexpected `}`; write `;` here"),
        ("const A = ;", "1:11: unexpected `;`; write a number or the name of a constant here"),
        ("enum a { };", "1:10: unexpected `}`; write a name here"),
        ("struct a { void; };", "1:12: unexpected `void`; write a type other than void here"),
        (
            "int x;",
            "1:1: unexpected `int`; write `const`, `typedef`, `enum`, `struct`, `union` or `program` here",
        ),
        ("typedef void;", "1:1: a typedef of void; take it out"),
        (
            "struct a {\n  quadruple q;\n};",
            "2:3: the type `quadruple` is not supported; declare it as `opaque x[16]`",
        ),
        ("typedef long a;", "1:9: the type `long` is not supported; write `int` or `hyper`"),
        ("struct a { int b; ", "1:19: unexpected the end of the file; write `}` here"),
        (
            "/*@ fast */ typedef opaque a<>;",
            "1:1: unknown annotation `fast`; there are `ddp` and `bytes`",
        ),
        (
            "struct a { int b[]; };",
            "1:18: unexpected `]`; write a number or the name of a constant here",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), format!("t.x:{expected}"), "{text}");
    }
}

#[test]
fn mistakes_in_the_meaning_are_named_with_place_and_remedy() {
    let cases = [
        ("typedef foo a;", "1:9: there is no type `foo`"),
        ("typedef opaque a<B>;", "1:18: there is no constant `B`"),
        ("typedef opaque a<-1>;", "1:18: a length of -1"),
        ("typedef opaque a<4294967296>;", "1:18: a length of 4294967296"),
        ("typedef int a[0];", "1:15: an array without items"),
        ("typedef int a; typedef int a;", "1:28: `a` is defined twice"),
        ("const A = 1; enum b { A = 2 };", "1:23: `A` is defined twice"),
        ("enum a { B = 1, C = 1 };", "1:17: `C` and `B` have one value"),
        ("enum a { B = 2147483648 };", "1:10: `B` is 2147483648, which does not fit 32 bits"),
        ("struct a { string s; };", "1:19: `string` without a length"),
        ("struct a { opaque s; };", "1:19: `opaque` without a length"),
        ("struct a { a b; };", "1:8: `a` contains itself"),
        ("struct a { int v; a b<>; };", "1:8: `a` contains itself"),
        ("struct t { t *left; t *right; };", "1:8: `t` contains itself"),
        ("typedef a b; typedef b a;", "1:11: `b` contains itself"),
        ("struct a_b { int x; }; struct aB { int x; };", "1:31: `aB` has the Rust name `AB`"),
        ("struct a { int xY; int x_y; };", "1:8: `x_y` has the Rust name `x_y`"),
        ("struct Option { int x; };", "1:8: `Option` has the Rust name `Option`"),
        ("union u switch (hyper h) { case 1: void; };", "1:23: `h` cannot be the discriminant"),
        (
            "enum e { A = 1 }; union u switch (e h) { case 2: void; };",
            "1:47: case 2 is not a value",
        ),
        ("union u switch (bool b) { case 2: void; };", "1:32: case 2 is not a value"),
        ("union u switch (int i) { case 1: case 1: void; };", "1:39: two cases of value 1"),
        ("/*@ ddp */ typedef string a<>;", "1:27: `ddp` on `a`, which is not `opaque<>`"),
        ("/*@ bytes */ typedef opaque a<>;", "1:29: `bytes` on `a`, which is not `string<>`"),
        (
            "/*@ ddp */ typedef opaque a<>; typedef a b[2];",
            "1:42: `b` has items for direct placement in a list or in an array of fixed length",
        ),
        (
            "program P { version V { void A(void) = 1; void B(void) = 1; } = 1; } = 1;",
            "1:48: `B` has the number",
        ),
        (
            "program P { version V { void A(string) = 1; } = 1; } = 1;",
            "1:30: `A` takes or returns a type",
        ),
        ("program P { version V { void A(void) = -1; } = 1; } = 1;", "1:40: -1 is not the number"),
    ];
    for (text, expected) in cases {
        let error = error(text);
        assert!(error.starts_with(&format!("t.x:{expected}")), "{text}: {error}");
        assert!(error.contains("; "), "{error} has no remedy");
    }
}

#[test]
fn types_nest_to_a_limit() {
    let chain = |length: usize| {
        (1..length).fold("typedef int t0;".to_owned(), |mut text, index| {
            text += &format!("typedef t{} t{index};", index - 1);
            text
        })
    };
    assert!(Generator::new().rust("t.x", &chain(1000)).is_ok(), "seen from its beginning");
    let reversed: String = chain(1000).split_inclusive(';').rev().collect();
    assert!(error(&reversed).contains("nested too deep"));
}

#[test]
fn types_without_a_name_are_named_after_their_place() {
    let text = "struct a { struct { int x; } b; enum { ON = 1 } c<3>; union switch (int d) { case 1: int e; } f; };
        typedef enum { OFF = 0 } g;";
    let model = Generator::new().model("t.x", text).unwrap();
    let names: Vec<&str> = model.types.iter().map(|found| found.rust.as_str()).collect();
    assert_eq!(names, ["AB", "AC", "AF", "A", "G"]);
}

#[test]
fn a_list_is_told_from_other_optional_data() {
    let text = "struct node { int x; node *next; }; typedef node *list; typedef node again;
        struct uses { node one; node *any; list named; again *other; int *number; };";
    let model = Generator::new().model("t.x", text).unwrap();
    let Kind::Struct { fields, .. } = &model.types[3].kind else { panic!() };
    let types: Vec<&Ty> = fields.iter().map(|field| &field.ty).collect();
    let expected = [&Ty::Chain(0), &Ty::List(0), &Ty::Named(1), &Ty::List(0)];
    assert_eq!(types[..4], expected);
    assert!(matches!(types[4], Ty::Optional(_)));
    assert_eq!(model.rust(types[0]), "Chain<'a, Node>");
}

#[test]
fn declarations_are_annotated_from_outside_of_the_file() {
    let text = "struct a { opaque data<9>; string name<8>; }; typedef string path<>;";
    let generator = Generator::new().ddp("a.data").bytes("a.name").bytes("path");
    let rust = generator.rust("t.x", text).unwrap();
    for expected in ["data: Placed<'a, 9>", "name: Opaque<'a, 8>", "type Path<'a> = Opaque<'a>"] {
        assert!(rust.contains(expected), "{rust}");
    }
    let error = generator.ddp("b.data").rust("t.x", text).unwrap_err().to_string();
    assert!(error.contains("no declaration `b.data` to annotate"), "{error}");
}

#[test]
fn a_type_may_have_the_name_of_a_type_of_the_library() {
    let rust = rust("typedef string text<8>; struct list { text a; opaque b<>; };");
    for expected in ["type Text<'a> = spinrpc_xdr::Text<'a, 8>", "b: spinrpc_xdr::Opaque<'a>"] {
        assert!(rust.contains(expected), "{rust}");
    }
    assert!(rust.contains("PartialEq, Eq, spinrpc_xdr::Xdr)]") && !rust.contains("use "), "{rust}");
}

#[test]
fn one_description_makes_one_text() {
    let text = include_str!("golden/example.x");
    assert_eq!(rust(text), rust(text));
}

proptest! {
    /// Whatever the words, the generator answers.
    #[test]
    fn any_sequence_of_words_is_refused_or_generated(
        words in vec(prop::sample::select(vec![
            "const", "typedef", "enum", "struct", "union", "switch", "case", "default", "program",
            "version", "opaque", "string", "int", "unsigned", "bool", "void", "a", "b", "A", "B",
            "0", "1", "-1", "0x10", "{", "}", "(", ")", "[", "]", "<", ">", ";", ":", ",", "=", "*",
            "/*@ ddp */", "/*@ bytes */", "/* */", "%\n", "TRUE",
        ]), 0..40)
    ) {
        let _ = Generator::new().rust("t.x", &words.join(" "));
    }

    #[test]
    fn any_text_is_refused_or_generated(text in ".*") {
        let _ = Generator::new().rust("t.x", &text);
    }
}
