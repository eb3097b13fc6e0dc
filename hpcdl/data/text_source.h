#pragma once
// Text to train on, read in blocks: a .txt file is one document, and so is every line of .jsonl. A file never has to
// fit into memory.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/data/byte_stream.h"

namespace hpcdl::data {

/// The files that `paths` name: for a file that file, for a folder all .txt, .md, .jsonl and .ndjson below it (each
/// also .gz and .zst; without hidden ones), sorted by name. Throws Error if a path does not exist or a folder holds
/// none. `not_text`: a file that is skipped in folders although its name is that of a text; it need not exist.
std::vector<fs::path> resolve_text_files(std::span<const fs::path> paths, const fs::path& not_text = {});

struct TextOptions {
  std::string key = "text";                        // of a line of .jsonl
  bool replace_invalid = false;                    // bytes that are not UTF-8 become U+FFFD instead of an Error
  std::size_t block_bytes = std::size_t{8} << 20;  // bytes of text in memory at a time
  // Whether a document must not be cut at this position, because an added token covers it.
  std::function<bool(std::string_view text, std::size_t at)> is_inside = {};
};

/// A document, or a part of one that is too large for one block. It is cut where tokens end (io::find_safe_cut(), but
/// not TextOptions::is_inside) unless a quarter of a gigabyte has no such position.
struct TextPart {
  std::string text;
  bool begins_document = true;
};

class TextReader {
 public:
  explicit TextReader(std::vector<fs::path> files, TextOptions options = {});
  ~TextReader();

  /// The next parts, about options.block_bytes of text together; empty at the end. Throws Error that names file and
  /// position for text that is not UTF-8 and for lines that are not JSON objects with the key.
  std::vector<TextPart> read();

  std::int64_t total_bytes() const { return total_; }  // of all files, as they are stored
  std::int64_t done_bytes() const;
  std::int64_t documents() const { return documents_; }  // files begun so far

 private:
  bool open_next();
  void close();
  void read_text(std::vector<TextPart>& out);
  void read_lines(std::vector<TextPart>& out);
  void add_line(std::string_view line, std::vector<TextPart>& out);
  std::string checked(std::string_view text, std::int64_t offset) const;

  std::vector<fs::path> files_;
  TextOptions options_;
  std::int64_t total_ = 0, closed_bytes_ = 0, documents_ = 0;
  std::size_t next_file_ = 0;
  std::unique_ptr<ByteStream> stream_;  // of files_[next_file_ - 1]
  bool lines_ = false, begun_ = false;
  std::string buffer_;
  std::int64_t offset_ = 0, line_ = 0;  // position of the beginning of buffer_ in the (decompressed) file
};

}  // namespace hpcdl::data
