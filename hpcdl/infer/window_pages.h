#pragma once
// The pages of layers that see only the last keys of a text. A text gives them back as soon as its window has left them.

#include <cstdint>
#include <list>
#include <vector>

#include "hpcdl/io/model_config.h"

namespace hpcdl::infer {

/// The pages that layers with a window need for this many texts at a time and `budget` tokens of a pass; 0: there are no
/// such layers, or they would need no fewer than the `pages` of the other layers.
std::int64_t window_pages(const io::ModelConfig& model, std::int64_t pages, std::int64_t sequences,
                          std::int64_t budget);
/// The first page that the token after `tokens` others sees through a window.
std::int64_t first_page_seen(std::int64_t tokens, std::int64_t window);

/// Which page of these layers belongs to which page of a PageTable. It stays there after the last text that needs it,
/// until another one needs the memory, so that later texts find it. There are enough pages for all texts (window_pages).
class WindowPages {
 public:
  WindowPages(std::int64_t pages, std::int64_t table_pages);

  std::int64_t pages() const { return static_cast<std::int64_t>(pages_); }
  /// Pages that no text needs.
  std::int64_t free_pages() const { return std::ssize(free_) + std::ssize(idle_); }
  /// The page of `owner`, a page of the table; -1: none.
  std::int32_t of(std::int32_t owner) const { return at(owner).page; }

  /// One more text needs the page of `owner`, which gets one if it has none.
  std::int32_t hold(std::int32_t owner);
  /// One text less does. `found_again`: later texts may find it by its tokens.
  void release(std::int32_t owner, bool found_again);

 private:
  struct Owner {
    std::int32_t page = -1, holders = 0;
    std::list<std::int32_t>::iterator place = {};  // in idle_, if it has a page and no holder
  };
  const Owner& at(std::int32_t owner) const { return owners_[static_cast<std::size_t>(owner)]; }
  Owner& at(std::int32_t owner) { return owners_[static_cast<std::size_t>(owner)]; }
  std::int32_t take();

  std::int64_t pages_;
  std::vector<Owner> owners_;
  std::vector<std::int32_t> free_;
  std::list<std::int32_t> idle_;  // owners; the first one was needed least recently
};

}  // namespace hpcdl::infer
