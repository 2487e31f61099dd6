//! Keys lead to their file after a restart, and never to another one.

use super::*;

fn both(test: impl Fn(Export)) {
    for keys in [KeyMode::Kernel, KeyMode::Walk] {
        if keys == KeyMode::Walk || is_root() {
            test(Export::with(DirectoryOptions { keys, ..DirectoryOptions::default() }));
        }
    }
}

#[test]
fn keys_are_the_same_behind_a_restart() {
    both(|mut export| {
        let (directory, file) = (export.make_directory("directory"), export.create("file"));
        fs::rename(export.local("file"), export.local("directory/renamed")).unwrap();
        let root = export.root();
        export.restart();
        assert_eq!(export.root(), root);
        let attributes = export.directory.attributes(&file).unwrap();
        assert_eq!(attributes.fileid, inode(&export.local("directory/renamed")));
        assert_eq!(export.lookup(&directory, "renamed").unwrap().key, file);
        let read = export.data().read_as(&ROOT, &file, (0, 1));
        assert_eq!(read.unwrap(), (vec![], true));
    });
}

#[test]
fn a_file_that_is_gone_is_stale_whether_it_is_held_open_or_not() {
    both(|mut export| {
        let (held, not_held) = (export.create("held"), export.create("not-held"));
        fs::remove_file(export.local("held")).unwrap();
        assert_eq!(status(export.directory.attributes(&held)), Nfsstat3::Nfs3errStale);
        fs::remove_file(export.local("not-held")).unwrap();
        export.restart();
        for key in [held, not_held] {
            assert_eq!(status(export.directory.attributes(&key)), Nfsstat3::Nfs3errStale);
            let read = export.data().read_as(&ROOT, &key, (0, 1));
            assert_eq!(status(read), Nfsstat3::Nfs3errStale);
            let written = export.data().write_as(&ROOT, &key, (0, b"x"), StableHow::Unstable);
            assert_eq!(status(written), Nfsstat3::Nfs3errStale);
        }
    });
}

#[test]
fn a_number_that_is_used_again_is_another_file() {
    both(|mut export| {
        let mut reused = false;
        for round in 0..40 {
            let name = format!("old-{round}");
            let old = export.create(&name);
            let number = inode(&export.local(&name));
            export.remove(&name).unwrap();
            let new = export.create("new");
            reused |= inode(&export.local("new")) == number;
            assert_ne!(new, old);
            export.restart();
            assert_eq!(status(export.directory.attributes(&old)), Nfsstat3::Nfs3errStale);
            export.directory.attributes(&new).unwrap();
            export.remove("new").unwrap();
        }
        // Some file systems never do; ext4, where tests usually run, does at once.
        eprintln!("numbers were used again: {reused}");
    });
}

#[test]
fn keys_that_were_never_given_are_stale() {
    both(|export| {
        let file = export.create("file");
        let mut cut = file.as_bytes().to_vec();
        cut.pop();
        let mut changed = file.as_bytes().to_vec();
        changed[5] ^= 0xff;
        let other_kind = [&[file.as_bytes()[0] ^ 1], &file.as_bytes()[1..]].concat();
        for bytes in [vec![], vec![0], vec![1], cut, changed, other_kind, vec![0xff; 40]] {
            let key = FileKey::new(&bytes).unwrap();
            assert_eq!(
                status(export.directory.attributes(&key)),
                Nfsstat3::Nfs3errStale,
                "{bytes:?}"
            );
        }
    });
}

/// Two searches at most, for whatever keys.
#[test]
fn one_search_in_vain_answers_for_all_stale_keys() {
    let keys = KeyMode::Walk;
    let mut export = Export::with(DirectoryOptions { keys, ..DirectoryOptions::default() });
    let outside = Export::new();
    let names: Vec<_> = (0..100).map(|number| format!("file-{number}")).collect();
    let files: Vec<_> = names.iter().map(|name| export.create(name)).collect();
    let moves = |from: &Export, to: &Export| {
        names.iter().for_each(|name| fs::rename(from.local(name), to.local(name)).unwrap());
    };
    moves(&export, &outside);
    export.restart();
    assert_eq!(status(export.directory.attributes(&files[0])), Nfsstat3::Nfs3errStale);
    // A search for any of them would see all.
    moves(&outside, &export);
    for file in &files {
        assert_eq!(status(export.directory.attributes(file)), Nfsstat3::Nfs3errStale);
    }
    let removed = export.create("removed");
    export.remove("removed").unwrap();
    assert_eq!(status(export.directory.attributes(&removed)), Nfsstat3::Nfs3errStale);
    assert_eq!(status(export.directory.attributes(&files[1])), Nfsstat3::Nfs3errStale);
    export.directory.tree.keys.search_now();
    export.directory.attributes(&files[1]).unwrap();
}

/// By a local process, soon after a search. Expect that its handle never looks stale.
#[test]
fn a_file_that_was_moved_after_a_search_waits_for_the_next_one() {
    let keys = KeyMode::Walk;
    let export = Export::with(DirectoryOptions { keys, ..DirectoryOptions::default() });
    let [moved, gone, other] = ["moved", "gone", "other"].map(|name| export.create(name));
    let tree = &export.directory.tree;
    (0..10).for_each(|_| tree.tick_now());
    fs::remove_file(export.local("gone")).unwrap();
    assert_eq!(status(export.directory.attributes(&gone)), Nfsstat3::Nfs3errStale);
    fs::rename(export.local("moved"), export.local("elsewhere")).unwrap();
    fs::remove_file(export.local("other")).unwrap();
    for file in [&moved, &other] {
        assert_eq!(status(export.directory.attributes(file)), Nfsstat3::Nfs3errJukebox);
    }
    // The search for the other one sees it.
    tree.keys.search_now();
    assert_eq!(status(export.directory.attributes(&other)), Nfsstat3::Nfs3errStale);
    export.directory.attributes(&moved).unwrap();
}

/// By its client, soon after a search. Expect that it is found at once, as is a file below.
#[test]
fn a_file_that_a_client_has_moved_is_known_there() {
    let keys = KeyMode::Walk;
    let export = Export::with(DirectoryOptions { keys, ..DirectoryOptions::default() });
    let (root, directory, gone) =
        (export.root(), export.make_directory("directory"), export.create("gone"));
    let [moved, below] = ["moved", "below"].map(|name| export.create(name));
    let tree = &export.directory.tree;
    (0..10).for_each(|_| tree.tick_now());
    fs::remove_file(export.local("gone")).unwrap();
    assert_eq!(status(export.directory.attributes(&gone)), Nfsstat3::Nfs3errStale);
    export.rename(at(&root, "moved"), at(&root, "elsewhere")).unwrap();
    export.rename(at(&root, "below"), at(&directory, "below")).unwrap();
    export.rename(at(&root, "directory"), at(&root, "other")).unwrap();
    (0..10).for_each(|_| tree.tick_now());
    assert_eq!(tree.nodes.held(), 0);
    for file in [moved, directory, below] {
        export.directory.attributes(&file).unwrap();
    }
}

#[test]
fn files_that_nobody_asks_for_are_let_go_and_found_again() {
    both(|export| {
        let file = export.create("file");
        let tree = &export.directory.tree;
        assert!(export.directory.attributes_now(&file).is_some());
        for _ in 0..10 {
            tree.tick_now();
        }
        assert_eq!(tree.nodes.held(), 0);
        assert!(export.directory.attributes_now(&file).is_none(), "the core would have to wait");
        let used = tree.node(&file).unwrap();
        for _ in 0..10 {
            tree.tick_now();
        }
        assert!(Arc::ptr_eq(&used, &tree.node(&file).unwrap()), "another has other changes");
        assert!(export.directory.attributes_now(&file).is_some());
    });
}

#[test]
fn no_more_files_are_held_open_than_allowed() {
    let options = DirectoryOptions { open_files_max: 16, ..DirectoryOptions::default() };
    let export = Export::with(options);
    let keys: Vec<_> = (0..64).map(|number| export.create(&format!("file-{number}"))).collect();
    assert!(export.directory.tree.nodes.held() <= 16);
    let mut data = export.data();
    for key in &keys {
        data.write_as(&ROOT, key, (0, b"x"), StableHow::Unstable).unwrap();
    }
    assert!(export.directory.tree.nodes.held() <= 16);
    let synced = export.directory.syncs().file - 128;
    assert!(synced >= 48, "what was given up was synced before: {synced}");
    let node = |key| export.directory.tree.node(key).unwrap();
    let used = node(&keys[0]);
    for key in &keys {
        drop(node(key));
    }
    assert!(Arc::ptr_eq(&used, &node(&keys[0])));
}

#[test]
fn a_removed_file_is_let_go_at_once() {
    let export = Export::new();
    let file = export.create("file");
    export.data().write_as(&ROOT, &file, (0, b"x"), StableHow::Unstable).unwrap();
    let held = export.directory.tree.nodes.held();
    export.remove("file").unwrap();
    assert_eq!(export.directory.tree.nodes.held(), held - 1);
}

/// A mounted overlay with `file`, and its other name `link`, in the lower directory.
fn overlay(options: &str) -> Option<PathBuf> {
    let folder = fresh_path();
    let [lower, upper, work, merged] =
        ["lower", "upper", "work", "merged"].map(|name| folder.join(name));
    for each in [&folder, &lower, &upper, &work, &merged] {
        fs::create_dir(each).unwrap();
    }
    fs::write(lower.join("file"), "lower").unwrap();
    fs::hard_link(lower.join("file"), lower.join("link")).unwrap();
    let [lower, upper, work] = [lower, upper, work].map(|path| path.display().to_string());
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}{options}");
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &layers]).arg(&merged);
    mount.status().unwrap().success().then_some(merged)
}

/// A file of the lower directory gets another birth time, and of several names only one follows, when it is first written.
#[test]
fn an_overlay_is_exported_only_with_handles_that_outlive_the_first_write() {
    let test = "keys::an_overlay_is_exported_only_with_handles_that_outlive_the_first_write";
    if !is_in_a_namespace(test) {
        return;
    }
    let Some(merged) = overlay("") else { return eprintln!("not tested: no overlays") };
    for keys in [KeyMode::Auto, KeyMode::Walk] {
        let options = DirectoryOptions { keys, ..DirectoryOptions::default() };
        let refused = Directory::open(&merged, &options).err().map(|error| error.to_string());
        let text = refused.unwrap_or_else(|| panic!("{keys:?}: exported"));
        assert!(text.contains("index=on,nfs_export=on"), "{text}");
    }
    let merged = overlay(",index=on,nfs_export=on").unwrap();
    let options = DirectoryOptions::default();
    let directory = Directory::open(&merged, &options).unwrap();
    assert_eq!(directory.ways().keys, KeyMode::Kernel);
    let export = std::mem::ManuallyDrop::new(Export { path: merged, options, directory });
    let file = export.key("file");
    let mut data = export.data();
    assert_eq!(data.read_as(&ROOT, &file, (0, 9)).unwrap().0, b"lower");
    data.write_as(&ROOT, &file, (0, b"upper"), StableHow::FileSync).unwrap();
    for _ in 0..8 {
        export.directory.tree.tick_now();
    }
    assert_eq!((export.key("file"), export.key("link")), (file, file));
    assert_eq!(data.read_as(&ROOT, &file, (0, 9)).unwrap().0, b"upper");
}
