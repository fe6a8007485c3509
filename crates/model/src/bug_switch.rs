//! Planted bugs: mistakes that a test switches on in its own thread, to show that it would find them.

/// Defines the switch of a crate's planted bugs, of which the type is given.
///
/// `planted(bug)` tells whether a bug is planted in this thread, and `plant` plants one, or removes it. Without the
/// crate's feature `bug-zoo` there is no `plant`, and `planted` is always false at compile time.
#[macro_export]
macro_rules! bug_switch {
    ($bug:ty) => {
        #[cfg(feature = "bug-zoo")]
        ::std::thread_local! {
            static PLANTED: ::std::cell::Cell<Option<$bug>> = const { ::std::cell::Cell::new(None) };
        }

        /// Plants a bug in this thread, or removes it.
        #[cfg(feature = "bug-zoo")]
        pub fn plant(bug: Option<$bug>) {
            PLANTED.set(bug);
        }

        /// Whether a bug is planted in this thread.
        #[cfg(feature = "bug-zoo")]
        pub fn planted(bug: $bug) -> bool {
            PLANTED.get() == Some(bug)
        }

        /// Whether a bug is planted: never.
        #[cfg(not(feature = "bug-zoo"))]
        #[inline(always)]
        pub fn planted(_: $bug) -> bool {
            false
        }
    };
}
