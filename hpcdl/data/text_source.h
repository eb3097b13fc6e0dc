#pragma once
// Text to train on, read in blocks: .txt is one document, every line of .jsonl is one. A file never has to fit in
// memory.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/data/byte_stream.h"

namespace hpcdl::data {

/// The files that `paths` name: a file itself, of a folder all .txt, .md, .jsonl and .ndjson below it (each
/// also .gz and .zst; hidden ones apart), sorted by name. Throws Error when a path does not exist or a folder holds
/// none. `not_text`: a file that no folder gives, though its name says that it is text; there may be none.
std::vector<fs::path> resolve_text_files(std::span<const fs::path> paths, const fs::path& not_text = {});

struct TextOptions {
  std::string key = "text";                        // of a line of .jsonl
  bool replace_invalid = false;                    // what is not UTF-8 becomes U+FFFD instead of an Error
  std::size_t block_bytes = std::size_t{8} << 20;  // of text that is in memory at a time
  // Whether a document must not be cut at this place of the text: an added token lies over it.
  std::function<bool(std::string_view text, std::size_t at)> is_inside = {};
};

/// A document, or a part of one that is too large for one block. It is cut where tokens end (io::find_safe_cut(), and
/// not TextOptions::is_inside) unless there is no such place in a quarter of a gigabyte.
struct TextPart {
  std::string text;
  bool begins_document = true;
};

class TextReader {
 public:
  explicit TextReader(std::vector<fs::path> files, TextOptions options = {});
  ~TextReader();

  /// The next parts, about options.block_bytes of text together; empty at the end. Throws Error that names file and
  /// place for text that is not UTF-8 and lines that are not JSON objects with the key.
  std::vector<TextPart> read();

  std::int64_t total_bytes() const { return total_; }  // of all files, as they are stored
  std::int64_t done_bytes() const;
  std::int64_t documents() const { return documents_; }  // begun so far

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
  std::int64_t offset_ = 0, line_ = 0;  // of buffer_'s begin in the (decompressed) file
};

}  // namespace hpcdl::data
