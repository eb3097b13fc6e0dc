#pragma once
// Which pages of keys and values are free, which texts hold the others, and which tokens' keys and values lie in them,
// so that a text finds those of its first tokens.

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace hpcdl::infer {

/// Hashes of the full pages of a text, each of all tokens until its end. They are kept with the text, so that looking
/// for its pages again reads few tokens.
class PageHashes {
 public:
  explicit PageHashes(const std::string& salt = {});
  /// `tokens`: the whole text, which continues that of the call before.
  void extend(std::span<const std::int32_t> tokens);
  std::uint64_t operator[](std::int64_t page) const { return of_pages_[static_cast<std::size_t>(page)]; }

 private:
  std::uint64_t last_;
  std::vector<std::uint64_t> of_pages_;
};

/// What a text is found by. Only texts with the same salt share pages.
struct PagedText {
  std::span<const std::int32_t> tokens;
  const PageHashes& hashes;  // of these tokens at least
  const std::string& salt;
};

class PageTable {
 public:
  explicit PageTable(std::int64_t pages);

  std::int64_t pages() const { return static_cast<std::int64_t>(pages_.size()); }
  /// Pages that hold nothing.
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  /// Pages that no text holds, but a later one may find.
  std::int64_t cached_pages() const { return static_cast<std::int64_t>(idle_.size()); }
  /// Pages that a text may take.
  std::int64_t available_pages() const { return free_pages() + cached_pages(); }
  /// Whether one text alone holds this page.
  bool is_own(std::int32_t page) const { return at(page).holders == 1; }
  bool is_idle(std::int32_t page) const { return at(page).holders == 0; }

  /// A free page, or the cached one that was used least recently, for a text that holds it from now on. Throws Error if
  /// there is none.
  std::int32_t take();
  /// One more text holds it.
  void hold(std::int32_t page);
  /// One text less holds it. Of the pages of a text the last ones are released first, since they are of no use without
  /// those before them.
  void release(std::int32_t page);

  /// Names a page with its tokens and all before it; never given twice. 0: the beginning of a text.
  using Entry = std::uint64_t;
  /// Makes a page findable after `parent`: page `number` of the text, with 1 to 64 tokens. If another page holds them
  /// already, that one is found, and its entry is returned.
  Entry publish(std::int32_t page, Entry parent, const PagedText& text, std::int64_t number);

  /// That of a page, 0 if it cannot be found.
  Entry entry(std::int32_t page) const { return at(page).entry; }

  struct Found {
    std::vector<std::int32_t> pages;  // full ones
    Entry last = 0;                   // the entry of the last one
    std::int32_t partial = -1;        // a page whose first `tokens` continue them, to be copied; -1: none
    Entry partial_entry = 0;
    std::int64_t tokens = 0;
    std::int64_t dropped = 0;  // pages that the text does not need, and that `pages` lacks
    std::int64_t full() const { return std::ssize(pages) + dropped; }
  };
  /// Whether the partial page still is what was found; pages that are not held may be taken meanwhile.
  bool has_partial(const Found& f) const { return f.partial >= 0 && at(f.partial).entry == f.partial_entry; }
  /// The longest beginning of these tokens whose keys and values are there. The pages are not held yet.
  Found find(const PagedText& text) const;

 private:
  struct Page {
    std::int32_t holders = 0;
    Entry entry = 0, parent = 0;  // entry 0: cannot be found
    std::uint64_t hash = 0;       // of a full page
    std::vector<std::int32_t> tokens = {};
    std::string salt = {};                         // of a text's first page; the others follow it
    std::list<std::int32_t>::iterator place = {};  // in idle_, if it is there
  };
  const Page& at(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)]; }
  Page& at(std::int32_t page) { return pages_[static_cast<std::size_t>(page)]; }
  std::int32_t full_page(Entry parent, const PagedText& text, std::int64_t number) const;
  struct Beginning {
    std::int32_t page = -1;
    std::int64_t tokens = 0;
  };
  Beginning after(Entry parent, std::span<const std::int32_t> tokens, const std::string& salt) const;
  void forget(std::int32_t page);

  std::vector<Page> pages_;
  std::vector<std::int32_t> free_;                                // the last one is taken first
  std::list<std::int32_t> idle_;                                  // the first one was used least recently
  std::unordered_multimap<std::uint64_t, std::int32_t> by_hash_;  // full pages only
  std::unordered_multimap<Entry, std::int32_t> by_parent_;
  Entry last_ = 0;
};

}  // namespace hpcdl::infer
