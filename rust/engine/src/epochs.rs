//! Which rows the store does not have yet, by the epoch that wrote them.

use std::collections::VecDeque;

use hashbrown::HashMap;

/// An epoch that a barrier ended, whose commit has not begun.
pub(crate) struct Frozen<V> {
    pub epoch: u32,
    pub checkpoint: u64,
    /// Somebody waits for its commit; else its rows merely go before those of the next.
    pub wanted: bool,
    dirty: List,
    /// The values at the barrier of rows that a later epoch has overwritten, by place.
    displaced: HashMap<u32, Option<V>>,
}

/// Places to flush, in the order in which they are taken.
#[derive(Default)]
struct List {
    places: VecDeque<u32>,
    /// So many at the front have been ordered by their keys.
    ordered: usize,
}

/// The running epoch and the frozen ones, the oldest first; their numbers have no gaps.
///
/// A list may name a place more than once, or one whose row has meanwhile been dropped: what counts is what the place
/// and the displaced values say when it is taken.
pub(crate) struct Epochs<V> {
    pub current: u32,
    dirty: List,
    pub frozen: VecDeque<Frozen<V>>,
}

impl<V> Epochs<V> {
    pub fn new() -> Self {
        Self { current: 1, dirty: List::default(), frozen: VecDeque::new() }
    }

    /// Names a place in the list of the running epoch.
    #[inline]
    pub fn list(&mut self, place: u32) {
        self.dirty.places.push_back(place);
    }

    pub fn freeze(&mut self, checkpoint: u64) -> u32 {
        let epoch = self.current;
        self.current = epoch.checked_add(1).expect("fewer than 2^32 checkpoints");
        self.frozen.push_back(Frozen {
            epoch,
            checkpoint,
            wanted: true,
            dirty: std::mem::take(&mut self.dirty),
            displaced: HashMap::new(),
        });
        epoch
    }

    pub fn frozen_mut(&mut self, epoch: u32) -> Option<&mut Frozen<V>> {
        let first = self.frozen.front()?.epoch;
        self.frozen.get_mut(epoch.checked_sub(first)? as usize)
    }

    /// Keeps the value that a row had at the end of `epoch`; false if that epoch's rows are no longer asked for.
    pub fn displace(&mut self, epoch: u32, place: u32, value: Option<V>) -> bool {
        let frozen = self.frozen_mut(epoch);
        debug_assert!(frozen.is_some(), "epoch {epoch} has a pending row and is gone");
        frozen.is_some_and(|frozen| frozen.displaced.insert(place, value).is_none())
    }

    pub fn is_displaced(&self, epoch: u32, place: u32) -> bool {
        self.frozen
            .front()
            .and_then(|front| self.frozen.get(epoch.checked_sub(front.epoch)? as usize))
            .is_some_and(|frozen| frozen.displaced.contains_key(&place))
    }

    pub fn take_displaced(&mut self, epoch: u32, place: u32) -> Option<Option<V>> {
        self.frozen_mut(epoch)?.displaced.remove(&place)
    }

    /// The next place that the list of `epoch` names.
    pub fn pop(&mut self, epoch: u32) -> Option<u32> {
        let list = self.list_of(epoch)?;
        let place = list.places.pop_front();
        list.ordered = list.ordered.saturating_sub(1);
        if list.places.is_empty() && list.places.capacity() > 1024 {
            *list = List::default();
        }
        place
    }

    /// The place that [`Self::pop`] gives after `skipped` others.
    #[inline]
    pub fn peek(&mut self, epoch: u32, skipped: usize) -> Option<u32> {
        self.list_of(epoch)?.places.get(skipped).copied()
    }

    /// Puts a place back to the list of `epoch`, to be taken next.
    pub fn unpop(&mut self, epoch: u32, place: u32) {
        if let Some(list) = self.list_of(epoch) {
            list.places.push_front(place);
            list.ordered += 1;
        }
    }

    /// Takes the next places out of the list of `epoch`, at most `most`, to be put back in order. `None` if they are in
    /// order already or not more than `few`.
    pub fn take_unordered(&mut self, epoch: u32, few: usize, most: usize) -> Option<Vec<u32>> {
        let list = self.list_of(epoch)?;
        if list.ordered > 0 || list.places.len() <= few {
            return None;
        }
        if list.places.len() <= most {
            return Some(std::mem::take(&mut list.places).into());
        }
        Some(list.places.drain(..most).collect())
    }

    /// Puts places back, to be taken first and in this order.
    pub fn put_ordered(&mut self, epoch: u32, places: Vec<u32>) {
        if let Some(list) = self.list_of(epoch) {
            list.ordered += places.len();
            let mut places = VecDeque::from(places);
            places.append(&mut list.places);
            list.places = places;
        }
    }

    fn list_of(&mut self, epoch: u32) -> Option<&mut List> {
        if epoch == self.current { Some(&mut self.dirty) } else { Some(&mut self.frozen_mut(epoch)?.dirty) }
    }

    /// Whether the list of the running epoch names anything.
    #[cfg(any(test, feature = "seeded-defects"))]
    pub fn current_is_empty(&self) -> bool {
        self.dirty.places.is_empty()
    }

    /// Takes the oldest frozen epoch out if nothing of it is left to flush.
    pub fn pop_flushed(&mut self) -> Option<Frozen<V>> {
        let front = self.frozen.front()?;
        if !front.dirty.places.is_empty() {
            return None;
        }
        debug_assert!(front.displaced.is_empty());
        self.frozen.pop_front()
    }

    /// Bytes of the lists and tables, without the displaced values' heap.
    #[inline]
    pub fn bytes(&self) -> usize {
        let frozen =
            |frozen: &Frozen<V>| frozen.dirty.places.capacity() * size_of::<u32>() + frozen.displaced.allocation_size();
        self.dirty.places.capacity() * size_of::<u32>()
            + self.frozen.capacity() * size_of::<Frozen<V>>()
            + self.frozen.iter().map(frozen).sum::<usize>()
    }
}
