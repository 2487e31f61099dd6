//! The NFS server, tested by a client over shared memory: every procedure, with every back end.
//!
//! A case is a function that takes a [`Host`](host::Host) and is listed in the macro `suite`, which
//! makes a test of each for a back end. To run the suite on another back end, write a function
//! `fn() -> BackEnd` for it in `back_end`, and add a module with `suite!(…)` to the end of this
//! file. Tests of the server itself, independent of the back end, are in `admission`, `hostile`,
//! `once` and `wire`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]
#![allow(clippy::result_large_err, reason = "what a server says of a failure is looked at")]

mod admission;
mod attributes;
mod back_end;
mod data;
mod gate;
#[cfg(feature = "cephfs")]
mod gateways;
mod host;
mod hostile;
mod limits;
mod listings;
mod making;
mod once;
#[path = "../common/reference.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod reference;
mod renaming;
mod replies;
mod rights;
mod session;
mod wire;

use back_end::BackEnd;
use gate::Gate;
use host::{BLOCK_BYTES, Host, MAIN, OTHER, READ_ONLY, SEAL_KEY, export, open};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;
use reference::{FromXdr, ReadHead, ToXdr, WriteHead, to_bytes};
use session::{Res, Session, at, made, mode, only_status, some, status};
use spinrpc::{
    AcceptStatus, AuthStat, AuthSys, CallError, CallSpec, ConnectOptions, DecodeError, Decoder,
    Encoder, Engine, Reconnect,
};
use spinrpc_nfs::server::exports::{Caller, Client, ExportOptions, Exports, Flavor, Squash};
use spinrpc_nfs::server::file_system::{FileKey, FileSystem, Place};
use spinrpc_nfs::server::{Server, ServerOptions};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A test of each case, for a back end. With `rights` those of a back end that checks permissions itself.
macro_rules! suite {
    (rights $back_end:path) => {
        suite! { $back_end =>
            rights: a_file_is_read_and_written_by_whom_the_mode_allows, the_owner_reads_and_writes_whatever_the_mode_is, a_directory_is_changed_and_searched_by_whom_the_mode_allows, attributes_are_set_by_whom_they_belong_to, a_directory_with_the_group_bit_gives_its_group, a_sticky_directory_keeps_what_others_made, no_program_runs_for_a_group_of_others, devices_are_made_by_root_alone,
                a_caller_who_may_write_sets_the_size_and_present_times, a_refused_change_changes_nothing,
                a_new_owner_or_group_takes_privileges_away;
        }
    };
    ($back_end:path) => {
        suite! { $back_end =>
            attributes: a_root_that_is_a_directory, sizes_are_set, times_are_set,
                modes_are_set, a_guard_that_is_not_the_ctime, a_file_that_is_gone,
                what_is_no_size_of_a_file, a_size_that_is_refused_changes_nothing;
            data: what_is_written_is_read, data_by_chunks, behind_the_end, a_hole_is_zeros,
                unstable_and_commit, what_is_no_regular_file, offsets_beyond_all_files,
                a_count_that_is_not_that_of_the_data, more_than_one_read_gives,
                no_bytes_at_all, wcc_of_a_write;
            limits: fsinfo_fsstat_and_pathconf, access_by_type, limits_of_what_is_gone;
            listings: a_directory_page_by_page, entries_with_their_files, pages_are_filled,
                a_page_too_small_for_one_entry, names_removed_while_listing, a_wrong_cookie,
                no_directory_to_list;
            making: lookup_finds, names_that_are_none, create_unchecked, create_guarded,
                create_exclusive, a_create_that_fails_makes_nothing,
                without_a_mode_a_new_file_is_for_its_owner, directories, symbolic_links,
                special_files, device_numbers_of_linux, hard_links,
                removal, wcc_of_directories, not_in_a_file;
            renaming: to_another_name, onto_a_file, onto_a_directory, of_a_directory_below_itself,
                onto_itself, with_names_that_are_none;
        }
    };
    ($back_end:path => $($module:ident: $($case:ident),+;)+) => {
        $($(
            #[test]
            fn $case() {
                let back_end = $back_end();
                if stringify!($module) == "rights" && !back_end.checks_rights {
                    return eprintln!("not tested, as this is not root");
                }
                crate::$module::$case(&crate::host::Host::start(back_end));
            }
        )+)+
    };
}

/// Answers at once, on the core.
mod memory {
    suite!(crate::back_end::memory);
    suite!(rights crate::back_end::memory);
}

/// The same, but blocking: through the thread pool, and polled data paths.
mod waiting {
    suite!(crate::back_end::waiting);
}

/// Files, with the kernel's handles and io_uring if available.
mod directory {
    suite!(crate::back_end::directory);
    suite!(rights crate::back_end::directory);
}

/// Files, for a server without privileges, in a container without io_uring.
mod modest_directory {
    suite!(crate::back_end::modest_directory);
    suite!(rights crate::back_end::modest_directory);
}

/// A directory of CephFS. Needs a cluster with two metadata servers: see `.ci/ceph`.
#[cfg(feature = "cephfs")]
mod cephfs {
    suite!(crate::back_end::cephfs);
    suite!(rights crate::back_end::cephfs);
}
