//! Makes the library depend on libc alone, and on no newer one than `oldest-glibc` says; `check-library.sh` proves it.
//!
//! Rust's standard library asks for the shared libgcc, for the unwinder; a linker script under that name, found first,
//! gives it the static one, whose symbols are not exported.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=native/find_object.c");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if target("OS") != "linux" || target("ENV") != "gnu" {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("libgcc_s.so"), "GROUP ( libgcc_eh.a libgcc.a )\n").expect("OUT_DIR can be written");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // As an object, not an archive: an archive before libgcc would not be searched again after it.
    for object in cc::Build::new().file("native/find_object.c").opt_level(2).compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
    // Threads of the runtime and thread-local destructors may outlive the class loader.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
