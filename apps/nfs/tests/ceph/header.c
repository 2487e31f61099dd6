/* Compiles only if libcephfs declares what src/sys/ceph/raw.rs declares, in the same order:
   cc -fsyntax-only -Werror -Wall header.c */
#define _FILE_OFFSET_BITS 64
#include <cephfs/libcephfs.h>
#include <dirent.h>
#include <stddef.h>
#include <sys/statvfs.h>

_Static_assert(sizeof(struct ceph_statx) == 136, "CephStatx");
_Static_assert(offsetof(struct ceph_statx, stx_mode) == 20, "CephStatx");
_Static_assert(offsetof(struct ceph_statx, stx_ino) == 24, "CephStatx");
_Static_assert(offsetof(struct ceph_statx, stx_atime) == 64, "CephStatx");
_Static_assert(offsetof(struct ceph_statx, stx_version) == 128, "CephStatx");
_Static_assert(sizeof(vinodeno_t) == 16 && offsetof(vinodeno_t, snapid) == 8, "Vino");
_Static_assert(CEPH_STATX_ALL_STATS == 0x1fff, "CEPH_STATX_ALL_STATS");
_Static_assert(CEPH_SETATTR_MODE == 1 && CEPH_SETATTR_UID == 1 << 1, "CEPH_SETATTR");
_Static_assert(CEPH_SETATTR_GID == 1 << 2 && CEPH_SETATTR_MTIME == 1 << 3, "CEPH_SETATTR");
_Static_assert(CEPH_SETATTR_ATIME == 1 << 4 && CEPH_SETATTR_SIZE == 1 << 5, "CEPH_SETATTR");

int (*ceph_create_)(struct ceph_mount_info **, const char *) = ceph_create;
int (*ceph_conf_read_file_)(struct ceph_mount_info *, const char *) = ceph_conf_read_file;
int (*ceph_conf_parse_env_)(struct ceph_mount_info *, const char *) = ceph_conf_parse_env;
int (*ceph_conf_set_)(struct ceph_mount_info *, const char *, const char *) = ceph_conf_set;
int (*ceph_mount_)(struct ceph_mount_info *, const char *) = ceph_mount;
int (*ceph_unmount_)(struct ceph_mount_info *) = ceph_unmount;
int (*ceph_abort_conn_)(struct ceph_mount_info *) = ceph_abort_conn;
int (*ceph_release_)(struct ceph_mount_info *) = ceph_release;
uint64_t (*ceph_get_instance_id_)(struct ceph_mount_info *) = ceph_get_instance_id;
UserPerm *(*ceph_userperm_new_)(uid_t, gid_t, int, gid_t *) = ceph_userperm_new;
void (*ceph_userperm_destroy_)(UserPerm *) = ceph_userperm_destroy;
int (*ceph_ll_lookup_root_)(struct ceph_mount_info *, Inode **) = ceph_ll_lookup_root;
int (*ceph_ll_lookup_vino_)(struct ceph_mount_info *, vinodeno_t, Inode **) = ceph_ll_lookup_vino;
int (*ceph_ll_lookup_)(struct ceph_mount_info *, Inode *, const char *, Inode **, struct ceph_statx *, unsigned, unsigned, const UserPerm *) = ceph_ll_lookup;
int (*ceph_ll_put_)(struct ceph_mount_info *, Inode *) = ceph_ll_put;
int (*ceph_ll_getattr_)(struct ceph_mount_info *, Inode *, struct ceph_statx *, unsigned, unsigned, const UserPerm *) = ceph_ll_getattr;
int (*ceph_ll_setattr_)(struct ceph_mount_info *, Inode *, struct ceph_statx *, int, const UserPerm *) = ceph_ll_setattr;
int (*ceph_ll_getxattr_)(struct ceph_mount_info *, Inode *, const char *, void *, size_t, const UserPerm *) = ceph_ll_getxattr;
int (*ceph_ll_open_)(struct ceph_mount_info *, Inode *, int, Fh **, const UserPerm *) = ceph_ll_open;
int (*ceph_ll_read_)(struct ceph_mount_info *, Fh *, int64_t, uint64_t, char *) = ceph_ll_read;
int (*ceph_ll_write_)(struct ceph_mount_info *, Fh *, int64_t, uint64_t, const char *) = ceph_ll_write;
int (*ceph_ll_fsync_)(struct ceph_mount_info *, Fh *, int) = ceph_ll_fsync;
int (*ceph_ll_sync_inode_)(struct ceph_mount_info *, Inode *, int) = ceph_ll_sync_inode;
int (*ceph_ll_close_)(struct ceph_mount_info *, Fh *) = ceph_ll_close;
int (*ceph_ll_create_)(struct ceph_mount_info *, Inode *, const char *, mode_t, int, Inode **, Fh **, struct ceph_statx *, unsigned, unsigned, const UserPerm *) = ceph_ll_create;
int (*ceph_ll_mknod_)(struct ceph_mount_info *, Inode *, const char *, mode_t, dev_t, Inode **, struct ceph_statx *, unsigned, unsigned, const UserPerm *) = ceph_ll_mknod;
int (*ceph_ll_mkdir_)(struct ceph_mount_info *, Inode *, const char *, mode_t, Inode **, struct ceph_statx *, unsigned, unsigned, const UserPerm *) = ceph_ll_mkdir;
int (*ceph_ll_symlink_)(struct ceph_mount_info *, Inode *, const char *, const char *, Inode **, struct ceph_statx *, unsigned, unsigned, const UserPerm *) = ceph_ll_symlink;
int (*ceph_ll_link_)(struct ceph_mount_info *, Inode *, Inode *, const char *, const UserPerm *) = ceph_ll_link;
int (*ceph_ll_unlink_)(struct ceph_mount_info *, Inode *, const char *, const UserPerm *) = ceph_ll_unlink;
int (*ceph_ll_rmdir_)(struct ceph_mount_info *, Inode *, const char *, const UserPerm *) = ceph_ll_rmdir;
int (*ceph_ll_rename_)(struct ceph_mount_info *, Inode *, const char *, Inode *, const char *, const UserPerm *) = ceph_ll_rename;
int (*ceph_ll_readlink_)(struct ceph_mount_info *, Inode *, char *, size_t, const UserPerm *) = ceph_ll_readlink;
int (*ceph_ll_statfs_)(struct ceph_mount_info *, Inode *, struct statvfs *) = ceph_ll_statfs;
int (*ceph_ll_opendir_)(struct ceph_mount_info *, Inode *, struct ceph_dir_result **, const UserPerm *) = ceph_ll_opendir;
int (*ceph_ll_releasedir_)(struct ceph_mount_info *, struct ceph_dir_result *) = ceph_ll_releasedir;
void (*ceph_seekdir_)(struct ceph_mount_info *, struct ceph_dir_result *, int64_t) = ceph_seekdir;
int (*ceph_readdirplus_r_)(struct ceph_mount_info *, struct ceph_dir_result *, struct dirent *, struct ceph_statx *, unsigned, unsigned, Inode **) = ceph_readdirplus_r;
