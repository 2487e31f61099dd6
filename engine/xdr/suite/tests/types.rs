//! Generated types: what decodes, what is refused and as which error, and that no bytes of a peer do harm.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use proptest::collection::vec;
use proptest::prelude::*;
use spinrpc_xdr::{
    Array, Branch, Chain, DEPTH_MAX, Decode, DecodeError, Decoder, Encode, List, Opaque, Placed,
    Text, UnsignedChar, to_bytes,
};
use spinrpc_xdr_suite::language::{
    Basics, ByColour, ByInt, ByWholeColour, Colour, Node, SomeTexts,
};
use spinrpc_xdr_suite::nfs_prot::{
    Dirlist3, Entry3, PostOpAttr, Read3res, Read3resok, Symlinkdata3,
};
use spinrpc_xdr_suite::unusual::{ByLevel, Level, LinkFirst, Tree};
use spinrpc_xdr_suite::{TYPES, mount};

fn decoded<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut from = Decoder::plain(bytes);
    let value = T::decode(&mut from)?;
    from.finish().map(|()| value)
}

/// Bytes that live as long as what is decoded from them.
fn words(words: &[u32]) -> &'static [u8] {
    words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>().leak()
}

/// The value is decoded from its own encoding.
#[track_caller]
fn assert_same<T: for<'a> Decode<'a> + Encode + PartialEq + std::fmt::Debug>(value: &T) {
    assert_eq!(decoded::<T>(&to_bytes(value)).as_ref(), Ok(value));
}

#[test]
fn a_struct_is_its_fields_in_order() {
    let basics = Basics { i: -1, u: 2, h: -3, uh: 4, f: 0.5, d: -0.25, b: true, c: Colour::Blue };
    let expected = words(&[
        u32::MAX,
        2,
        u32::MAX,
        u32::MAX - 2,
        0,
        4,
        0x3f00_0000,
        0xbfd0_0000,
        0,
        1,
        u32::MAX - 6,
    ]);
    assert_eq!(to_bytes(&basics), expected);
    assert_same(&basics);
}

#[test]
fn what_is_not_defined_is_an_error_of_its_own() {
    let colour = decoded::<Colour>(words(&[1]));
    assert_eq!(colour, Err(DecodeError::BadEnum { at: 0, value: 1 }));
    let union = decoded::<ByWholeColour<'_>>(words(&[9]));
    assert_eq!(union, Err(DecodeError::BadEnum { at: 0, value: 9 }));
    let default = decoded::<ByInt<'_>>(words(&[9]));
    assert_eq!(default, Ok(ByInt::Default(9)));
    let boolean = decoded::<PostOpAttr>(words(&[2]));
    assert_eq!(boolean, Err(DecodeError::BadBool { at: 0, value: 2 }));
}

#[test]
fn bounds_are_checked_before_items_are_looked_at() {
    let too_long = DecodeError::TooLong { at: 0, length: 5, max: 4 };
    assert_eq!(decoded::<SomeTexts<'_>>(words(&[5])), Err(too_long));
    assert!(Opaque::<'_, 4>::new(b"12345").is_err());
    assert!(Text::<'_, 4>::new("1234").is_ok());
    assert!(Array::<'_, u32, 1>::new(&[1, 2]).is_err());
    let many = decoded::<Array<'_, Basics>>(words(&[u32::MAX, 1, 2]));
    assert!(matches!(many, Err(DecodeError::Truncated { .. })), "{many:?}");
    let many = decoded::<Array<'_, u64>>(words(&[u32::MAX, 1, 2]));
    assert!(matches!(many, Err(DecodeError::Truncated { .. })), "{many:?}");
}

#[test]
fn arrays_of_variable_items_are_read_again_at_every_iteration() {
    let texts = ["", "a", "four"].map(|text| Text::new(text).unwrap());
    let array = SomeTexts::new(&texts).unwrap();
    let bytes = to_bytes(&array);
    let read: SomeTexts<'_> = decoded(&bytes).unwrap();
    assert_eq!(read, array);
    assert_eq!(read.len(), 3);
    assert!(read.iter().eq(texts));
    assert_eq!(read.get(2), Some(texts[2]));
    assert_eq!(read.get(3), None);
    assert_eq!(to_bytes(&read), bytes);
}

#[test]
fn a_list_is_its_nodes_behind_links() {
    let name = |name| Opaque::new(name).unwrap();
    let nodes = [
        Entry3 { fileid: 1, name: name(b"."), cookie: 2 },
        Entry3 { fileid: 3, name: name(b"long name"), cookie: 4 },
    ];
    let list = Dirlist3 { entries: List::new(&nodes), eof: true };
    let bytes = to_bytes(&list);
    let read: Dirlist3<'_> = decoded(&bytes).unwrap();
    assert_eq!(read, list);
    assert_eq!(read.entries.len(), 2);
    let chain = Chain { first: nodes[0], rest: List::new(&nodes[1..]) };
    assert_eq!(decoded::<Chain<'_, Entry3<'_>>>(&to_bytes(&chain)), Ok(chain));
    assert_eq!(to_bytes(&List::<Entry3<'_>>::default()), words(&[0]));
}

/// A decoder that recursed would need a megabyte of stack, and more.
#[test]
fn a_list_of_any_length_needs_no_stack() {
    let nodes = vec![Node { value: 7, text: Text::default() }; 1 << 20];
    let bytes = to_bytes(&List::new(&nodes));
    let small = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
        let list: List<'_, Node<'_>> = decoded(&bytes).unwrap();
        assert_eq!((list.len(), list.iter().count()), (1 << 20, 1 << 20));
        assert_eq!(to_bytes(&list), bytes);
    });
    small.unwrap().join().unwrap();
}

/// `depth` trees, each the left branch of the one before.
fn left_deep(depth: usize) -> Vec<u8> {
    let level = |left: u32| [7u32.to_be_bytes(), left.to_be_bytes()].concat();
    let mut bytes = level(1).repeat(depth - 1);
    bytes.extend(level(0));
    bytes.resize(bytes.len() + 4 * depth, 0);
    bytes
}

#[test]
fn a_tree_is_decoded_level_by_level() {
    let leaf = |value| Tree { value, ..Tree::default() };
    let (one, three) = (leaf(1), leaf(3));
    let tree = Tree { value: 2, left: Branch::new(&one), right: Branch::new(&three) };
    let bytes = to_bytes(&tree);
    assert_eq!(bytes, words(&[2, 1, 1, 0, 0, 1, 3, 0, 0]));
    let read: Tree<'_> = decoded(&bytes).unwrap();
    assert_eq!(read, tree);
    assert_eq!(read.left.get(), Some(one));
    assert_eq!(read.right.iter().next().unwrap().left.get(), None);
    assert_eq!(
        decoded::<Tree<'_>>(words(&[2, 2, 0])),
        Err(DecodeError::BadBool { at: 4, value: 2 })
    );
    let links = to_bytes(&LinkFirst { next: Branch::default(), name: Text::new("a").unwrap() });
    let links = [words(&[1]), &links, words(&[0])].concat();
    assert_eq!(decoded::<LinkFirst<'_>>(&links).unwrap().next.get().unwrap().name.text(), "a");
}

/// Without a limit a megabyte of zeros and ones would exhaust the stack.
#[test]
fn branches_nest_to_a_limit() {
    let deepest = 1 + DEPTH_MAX as usize;
    let small = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
        let (fits, exceeds, far) = (left_deep(deepest), left_deep(deepest + 1), left_deep(1 << 17));
        let tree: Tree<'_> = decoded(&fits).unwrap();
        let depth = std::iter::successors(Some(tree), |tree| tree.left.get()).count();
        assert_eq!(depth, deepest);
        assert_eq!(to_bytes(&tree), fits);
        for refused in [exceeds, far] {
            let error = decoded::<Tree<'_>>(&refused);
            assert!(matches!(error, Err(DecodeError::LimitExceeded { .. })), "{error:?}");
            assert!(decoded::<Tree<'_>>(&fits).is_ok(), "the next one is not affected");
        }
    });
    small.unwrap().join().unwrap();
}

#[test]
fn characters_and_shorts_are_words_within_their_range() {
    assert_eq!(to_bytes(&[-1i8, 1]), words(&[u32::MAX, 1]));
    assert_eq!(to_bytes(&UnsignedChar(255)), words(&[255]));
    assert_eq!(decoded(words(&[0xffff_8000])), Ok(i16::MIN));
    let too_large = |value| DecodeError::BadEnum { at: 0, value };
    assert_eq!(decoded::<i8>(words(&[128])), Err(too_large(128)));
    assert_eq!(decoded::<u16>(words(&[1 << 16])), Err(too_large(1 << 16)));
    assert_eq!(decoded::<UnsignedChar>(words(&[256])), Err(too_large(256)));
}

#[test]
fn an_enumerator_may_be_another_name_of_a_value() {
    assert_eq!((Level::Least, Level::Most), (Level::Low, Level::High));
    assert_eq!(to_bytes(&ByLevel::Least(7)), words(&[0, 7]));
    assert!(matches!(decoded::<Level>(words(&[1])), Ok(Level::Most)));
}

#[test]
fn strings_are_utf8_unless_the_description_says_bytes() {
    let latin1 = words(&[1, 0xe400_0000]);
    assert!(matches!(decoded::<Text<'_, 9>>(latin1), Err(DecodeError::BadUtf8 { .. })));
    assert_eq!(decoded::<mount::Name<'_>>(latin1).unwrap().bytes(), b"\xe4");
    let data = Symlinkdata3 {
        symlink_attributes: decoded(words(&[0; 6])).unwrap(),
        symlink_data: Opaque::new(b"\xff").unwrap(),
    };
    assert_eq!(decoded(&to_bytes(&data)), Ok(data));
}

#[test]
fn placed_data_are_borrowed_where_they_came_inline() {
    let data = Placed::Inline(b"data");
    let ok = Read3resok { file_attributes: None, count: 4, eof: true, data };
    let bytes = to_bytes(&Read3res::Nfs3Ok(ok));
    let Ok(Read3res::Nfs3Ok(read)) = decoded(&bytes) else { panic!() };
    assert_eq!(read.data.bytes(), b"data");
    assert!(bytes.as_ptr_range().contains(&read.data.bytes().as_ptr()), "copied");
}

#[test]
fn every_type_refuses_the_end_of_the_message_inside_of_a_value() {
    for description in common::DESCRIPTIONS {
        let model = common::model(description);
        for (index, found) in model.types.iter().enumerate() {
            let mut rows = TYPES.iter().filter(|row| row.description == description);
            let row = rows.find(|row| row.name == found.name).unwrap();
            let (bytes, _) = common::value(&model, &model.use_of(index), &[131; 64]);
            assert_eq!((row.again)(&bytes).unwrap().written, bytes, "{}", row.name);
            for end in 0..bytes.len() {
                assert!((row.again)(&bytes[..end]).is_err(), "{} of {end} bytes", row.name);
            }
        }
    }
}

proptest! {
    /// Random bytes do no harm to any type; what is taken is written as it was meant.
    #[test]
    fn whatever_is_decoded_is_encoded_and_decoded_again(
        bytes in vec(prop_oneof![Just(0u8), Just(1u8), any::<u8>()], 0..200)
    ) {
        for row in TYPES {
            if let Ok(first) = (row.again)(&bytes) {
                let second = (row.again)(&first.written).unwrap();
                prop_assert_eq!(second.read, first.written.len(), "{}", row.name);
                prop_assert_eq!(second.written, first.written, "{}", row.name);
            }
        }
    }
}

#[test]
fn a_union_over_an_enum_is_written_with_the_value_of_its_case() {
    let green = ByColour::Green(Array::new(&[7]).unwrap());
    assert_eq!(to_bytes(&green), words(&[5, 1, 7]));
    assert_eq!(decoded::<ByColour<'_>>(words(&[5, 1, 7])), Ok(green));
}
