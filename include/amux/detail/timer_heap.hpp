// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/scheduler.hpp>

#include <utility>

namespace amux::detail {

/// The armed nodes of a loop by due time, equal ones by `order`: a pairing heap through the links of the nodes.
///
/// `child` is a node's first child, `next` its right sibling, `prev` its left sibling or, for a first child, its
/// parent. Complexity: `push` O(1); `erase`, also of a node in the middle, O(log n) amortised. (Fredman, Sedgewick,
/// Sleator, Tarjan: The pairing heap, 1986.)
class timer_heap {
public:
    using node = scheduler::node;

    bool empty() const noexcept { return root_ == nullptr; }
    node* front() const noexcept { return root_; }

    void push(node& n) noexcept
    {
        n.child = n.next = n.prev = nullptr;
        root_ = meld(root_, &n);
    }

    void erase(node& n) noexcept
    {
        if (&n == root_) {
            root_ = meld_siblings(n.child);
            return;
        }
        (n.prev->child == &n ? n.prev->child : n.prev->next) = n.next;
        if (n.next)
            n.next->prev = n.prev;
        root_ = meld(root_, meld_siblings(n.child));
    }

private:
    static bool before(const node& a, const node& b) noexcept
    {
        return a.due != b.due ? a.due < b.due : a.order < b.order;
    }

    // Of two heaps without siblings, either of them null.
    static node* meld(node* a, node* b) noexcept
    {
        if (!a || !b)
            return a ? a : b;
        if (before(*b, *a))
            std::swap(a, b);
        b->prev = a;
        b->next = a->child;
        if (b->next)
            b->next->prev = b;
        a->child = b;
        return a;
    }

    static node* meld_siblings(node* first) noexcept
    {
        node* pairs = nullptr; // chained through `prev`, the last pair first
        while (first) {
            node* const a = first;
            node* const b = a->next;
            first = b ? b->next : nullptr;
            a->next = nullptr;
            if (b)
                b->next = nullptr;
            node* const pair = meld(a, b);
            pair->prev = pairs;
            pairs = pair;
        }
        node* root = nullptr;
        while (pairs) {
            node* const pair = pairs;
            pairs = pair->prev;
            pair->prev = nullptr;
            root = meld(root, pair);
        }
        return root;
    }

    node* root_ = nullptr;
};

} // namespace amux::detail
