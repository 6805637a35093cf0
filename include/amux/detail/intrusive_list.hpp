// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace amux::detail {

/// A doubly linked list through two members of its elements. It owns nothing and allocates nothing.
///
/// The links of an element that is in no list are unspecified; an element is in at most one list per pair of links.
template <class T, T* T::* Prev, T* T::* Next>
class intrusive_list {
public:
    bool empty() const noexcept { return front_ == nullptr; }
    T* front() const noexcept { return front_; }
    T* back() const noexcept { return back_; }

    void push_back(T& element) noexcept
    {
        element.*Prev = back_;
        element.*Next = nullptr;
        (back_ ? back_->*Next : front_) = &element;
        back_ = &element;
    }

    void erase(T& element) noexcept
    {
        T* const before = element.*Prev;
        T* const after = element.*Next;
        (before ? before->*Next : front_) = after;
        (after ? after->*Prev : back_) = before;
    }

    T* pop_front() noexcept
    {
        T* const first = front_;
        if (first)
            erase(*first);
        return first;
    }

    /// Moves all of `other` behind the elements of this list, in their order.
    void splice_back(intrusive_list& other) noexcept
    {
        if (other.empty())
            return;
        other.front_->*Prev = back_;
        (back_ ? back_->*Next : front_) = other.front_;
        back_ = other.back_;
        other.clear();
    }

    /// Forgets the elements; their links stay as they are.
    void clear() noexcept { front_ = back_ = nullptr; }

private:
    T* front_ = nullptr;
    T* back_ = nullptr;
};

} // namespace amux::detail
