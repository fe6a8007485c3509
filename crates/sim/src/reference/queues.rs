//! Keys in queues: each key is in one of `N` queues, and is found, moved and removed in constant time. Every
//! list-based policy is built on this.

use super::table::{At, Table};
use crate::key::Key;

/// A queue's number.
pub type QueueNo = u8;

const NONE: At = At::MAX;

#[derive(Clone, Copy)]
struct Node {
    key: Key,
    newer: At,
    older: At,
    queue: QueueNo,
    mark: u8,
}

#[derive(Clone, Copy)]
struct Ends {
    newest: At,
    oldest: At,
    len: usize,
}

/// See the module.
pub struct Queues<const N: usize> {
    table: Table,
    nodes: Vec<Node>,
    free: Vec<At>,
    queues: [Ends; N],
}

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        let empty = Ends { newest: NONE, oldest: NONE, len: 0 };
        Queues { table: Table::default(), nodes: Vec::new(), free: Vec::new(), queues: [empty; N] }
    }
}

impl<const N: usize> Queues<N> {
    /// The position of a key, if it is in any queue.
    pub fn find(&self, key: Key) -> Option<At> {
        self.table.find(key, |at| self.nodes[at as usize].key == key)
    }

    /// The queue.
    pub fn queue(&self, at: At) -> QueueNo {
        self.nodes[at as usize].queue
    }

    /// The queue that a key is in.
    pub fn queue_of(&self, key: Key) -> Option<QueueNo> {
        self.find(key).map(|at| self.queue(at))
    }

    /// A policy's note for the key; initially 0.
    pub fn mark(&self, at: At) -> u8 {
        self.nodes[at as usize].mark
    }

    /// Changes the note.
    pub fn set_mark(&mut self, at: At, mark: u8) {
        self.nodes[at as usize].mark = mark;
    }

    /// The key at this position.
    pub fn key(&self, at: At) -> Key {
        self.nodes[at as usize].key
    }

    /// Number of keys in a queue.
    pub fn len(&self, queue: QueueNo) -> usize {
        self.queues[usize::from(queue)].len
    }

    /// The oldest key of a queue.
    pub fn oldest(&self, queue: QueueNo) -> Option<At> {
        Some(self.queues[usize::from(queue)].oldest).filter(|at| *at != NONE)
    }

    /// The next newer key in the same queue.
    pub fn newer(&self, at: At) -> Option<At> {
        Some(self.nodes[at as usize].newer).filter(|at| *at != NONE)
    }

    /// The keys of a queue, oldest first.
    pub fn keys(&self, queue: QueueNo) -> impl Iterator<Item = Key> + '_ {
        std::iter::successors(self.oldest(queue), |at| self.newer(*at)).map(|at| self.key(at))
    }

    /// Adds a key that is in no queue at the newest end of one.
    pub fn push(&mut self, queue: QueueNo, key: Key) -> At {
        let node = Node { key, newer: NONE, older: NONE, queue, mark: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as At
            }
        };
        self.table.insert(key, at);
        self.link(at, queue);
        at
    }

    /// Moves a key to the newest end of a queue. Its mark stays.
    pub fn move_to(&mut self, queue: QueueNo, at: At) {
        if self.queue(at) == queue && self.queues[usize::from(queue)].newest == at {
            return;
        }
        self.unlink(at);
        self.link(at, queue);
    }

    /// Removes a key.
    pub fn remove(&mut self, at: At) -> Key {
        let key = self.key(at);
        self.unlink(at);
        self.table.remove(key, at);
        self.free.push(at);
        key
    }

    /// Removes the oldest key of a queue.
    pub fn pop(&mut self, queue: QueueNo) -> Option<Key> {
        self.oldest(queue).map(|at| self.remove(at))
    }

    fn link(&mut self, at: At, queue: QueueNo) {
        let ends = &mut self.queues[usize::from(queue)];
        let older = std::mem::replace(&mut ends.newest, at);
        ends.len += 1;
        match older {
            NONE => ends.oldest = at,
            older => self.nodes[older as usize].newer = at,
        }
        let node = &mut self.nodes[at as usize];
        (node.queue, node.newer, node.older) = (queue, NONE, older);
    }

    fn unlink(&mut self, at: At) {
        let Node { newer, older, queue, .. } = self.nodes[at as usize];
        let ends = &mut self.queues[usize::from(queue)];
        ends.len -= 1;
        match newer {
            NONE => ends.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.queues[usize::from(queue)].oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_move_between_queues() {
        let mut queues = Queues::<2>::default();
        let [a, b, _] = [1, 2, 3].map(|key| queues.push(0, Key(key)));
        queues.move_to(0, a);
        queues.move_to(1, b);
        queues.set_mark(b, 3);
        assert_eq!((queues.len(0), queues.len(1), queues.mark(b)), (2, 1, 3));
        assert_eq!(queues.queue_of(Key(2)), Some(1));
        assert_eq!(queues.pop(0), Some(Key(3)));
        assert_eq!(queues.pop(0), Some(Key(1)));
        assert_eq!(queues.pop(0), None);
        assert_eq!(queues.find(Key(3)), None);
        assert_eq!(queues.remove(b), Key(2));
        assert_eq!((queues.len(1), queues.oldest(1)), (0, None));
    }
}
