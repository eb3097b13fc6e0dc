#include "hpcdl/io/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/gguf/tokenizer.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::io {

const Json& member_of(const Json& section, const char* key, std::string_view where) {
  require(section.is_object(), "io", "tokenizer.json: {} is not an object", where);
  const auto found = section.find(key);
  require(found != section.end(), "io", "tokenizer.json: {} has no '{}'", where, key);
  return *found;
}

std::string text_of(const Json& section, const char* key, std::string_view where) {
  const Json& value = member_of(section, key, where);
  require(value.is_string(), "io", "tokenizer.json: '{}' of {} is not a string", key, where);
  return value.get<std::string>();
}

const Json& array_of(const Json& section, const char* key, std::string_view where) {
  const Json& value = member_of(section, key, where);
  require(value.is_array(), "io", "tokenizer.json: '{}' of {} is not a list", key, where);
  return value;
}

bool flag_of(const Json& section, const char* key, bool otherwise) {
  const auto found = section.is_object() ? section.find(key) : section.end();
  if (found == section.end() || found->is_null()) return otherwise;
  require(found->is_boolean(), "io", "tokenizer.json: '{}' is neither true nor false", key);
  return found->get<bool>();
}

TokenId id_of(const Json& value, std::string_view token) {
  require(value.is_number_unsigned() && value.get<std::uint64_t>() <= 0x7FFFFFFE, "io",
          "tokenizer.json: the id of token '{}' is not a whole number from 0 to 2^31 - 2", token);
  return static_cast<TokenId>(value.get<std::uint64_t>());
}

namespace {

constexpr std::string_view kFileName = "tokenizer.json";

const Json& section_of(const Json& root, const char* key) {
  static const Json none;
  const auto found = root.find(key);
  return found == root.end() ? none : *found;
}

std::string type_of(const Json& section) { return text_of(section, "type", "a section"); }

}  // namespace

/// Builds a Tokenizer from the sections of a tokenizer.json.
class TokenizerReader {
 public:
  explicit TokenizerReader(const Json& root) : root_(root) {}

  Tokenizer read() {
    require(root_.is_object(), "io", "tokenizer.json: not an object");
    read_splitter();
    t_.model_ = read_token_model(member_of(root_, "model", "the file"), t_.splitter_->byte_level());
    read_added();
    return read_rest();
  }

  /// All but the model, of which the added tokens are members.
  Tokenizer read(std::shared_ptr<const TokenModel> model, std::vector<AddedToken> added) {
    read_splitter();
    t_.model_ = std::move(model);
    t_.added_ = std::move(added);
    for (AddedToken& a : t_.added_) {
      a.id = t_.model_->find(a.content);
      require(a.id >= 0, "io", "special token '{}' is not in the vocabulary", a.content);
    }
    return read_rest();
  }

  static void set_end_of_text(Tokenizer& t, std::string_view token) {
    if (const auto id = t.find(token)) t.end_of_text_ = id;
  }

 private:
  void read_splitter() {
    const Json& splitter = section_of(root_, "pre_tokenizer");
    t_.splitter_ = std::make_shared<const PreTokenizer>(PreTokenizer::from_json(splitter));
    t_.pre_tokenizer_json_ = splitter.dump();
  }

  /// What needs to know the tokens.
  Tokenizer read_rest() {
    t_.normalizer_ = std::make_shared<const Normalizer>(Normalizer::from_json(section_of(root_, "normalizer")));
    t_.normalizer_json_ = section_of(root_, "normalizer").dump();
    read_post_processor(section_of(root_, "post_processor"), 0);
    t_.post_processor_json_ = section_of(root_, "post_processor").dump();
    read_decoder(section_of(root_, "decoder"));
    t_.finish();
    return std::move(t_);
  }

  void read_added() {
    const Json& list = section_of(root_, "added_tokens");
    if (list.is_null()) return;
    require(list.is_array(), "io", "tokenizer.json: 'added_tokens' is not a list");
    const auto bound = static_cast<TokenId>(t_.model_->size() + 8 * static_cast<std::int64_t>(list.size()) + 1024);
    for (const Json& entry : list) {
      AddedToken a{.content = text_of(entry, "content", "an added token")};
      if (a.content.empty()) continue;
      a.id = id_of(member_of(entry, "id", "an added token"), a.content);
      // A token of the model keeps the model's id, as in the library.
      if (const TokenId id = t_.model_->find(a.content); id >= 0) a.id = id;
      require(a.id < bound, "io", "tokenizer.json: added token '{}' has id {}, far beyond the vocabulary of {}",
              a.content, a.id, t_.model_->size());
      a.special = flag_of(entry, "special", false);
      a.normalized = flag_of(entry, "normalized", !a.special);
      a.single_word = flag_of(entry, "single_word", false);
      a.lstrip = flag_of(entry, "lstrip", false);
      a.rstrip = flag_of(entry, "rstrip", false);
      const TokenId theirs = id_in_library(a.content);
      require(a.id == theirs, "io",
              "tokenizer.json: added token '{}' has id {}, but the tokenizers library, which numbers tokens beyond the "
              "{} of the model one after the other, gives it {}: write {} into the file",
              a.content, a.id, t_.model_->tokens().size(), theirs, theirs);
      t_.added_.push_back(std::move(a));
    }
  }

  /// The id of the model, otherwise the next one; the id in the file is ignored.
  TokenId id_in_library(const std::string& content) const {
    if (const TokenId id = t_.model_->find(content); id >= 0) return id;
    auto next = static_cast<TokenId>(t_.model_->tokens().size());
    for (const AddedToken& a : t_.added_) {
      if (a.content == content) return a.id;
      next = std::max(next, a.id + 1);
    }
    return next;
  }

  void read_post_processor(const Json& section, int depth) {
    if (section.is_null()) return;
    const std::string type = type_of(section);
    if (type == "ByteLevel") return;
    if (type == "Sequence" && depth < 8) {
      for (const Json& part : array_of(section, "processors", "post_processor")) read_post_processor(part, depth + 1);
    } else if (type == "TemplateProcessing") {
      read_template(section);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      t_.prefix_.push_back(pair_id(section, "cls"));
      t_.suffix_.push_back(pair_id(section, "sep"));
    } else {
      fail("io", "tokenizer.json: post_processor '{}' is not supported", type);
    }
  }

  void read_template(const Json& section) {
    bool behind_text = false;
    for (const Json& part : array_of(section, "single", "post_processor")) {
      if (part.is_object() && part.contains("Sequence")) {
        require(!behind_text, "io", "tokenizer.json: a template that holds the text twice is not supported");
        behind_text = true;
        continue;
      }
      const std::string name =
          text_of(member_of(part, "SpecialToken", "post_processor template"), "id", "post_processor");
      const Json& special = member_of(section, "special_tokens", "post_processor");
      for (const Json& id : array_of(member_of(special, name.c_str(), "post_processor"), "ids", "post_processor"))
        (behind_text ? t_.suffix_ : t_.prefix_).push_back(known_id(id, name));
    }
  }

  TokenId pair_id(const Json& section, const char* key) {
    const Json& pair = array_of(section, key, "post_processor");
    require(pair.size() == 2 && pair[0].is_string(), "io", "tokenizer.json: '{}' of post_processor is not [token, id]",
            key);
    return known_id(pair[1], pair[0].get<std::string>());
  }

  TokenId known_id(const Json& value, const std::string& token) {
    const TokenId id = id_of(value, token);
    TokenId size = t_.model_->size();
    for (const AddedToken& a : t_.added_) size = std::max(size, a.id + 1);
    require(id < size, "io", "tokenizer.json: post_processor gives '{}' the id {}, outside the vocabulary of {}", token,
            id, size);
    return id;
  }

  static void set_byte_level_decoder(Tokenizer& t) {
    static constexpr std::string_view kByteLevel =
        R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
    t.decoder_ = std::make_shared<const Decoder>(Decoder::from_json(Json::parse(kByteLevel)));
    t.decoder_json_ = kByteLevel;
  }

  void read_decoder(const Json& section) {
    const bool bytes = t_.splitter_->byte_level();
    if (bytes && section.is_null()) return set_byte_level_decoder(t_);
    t_.decoder_ = std::make_shared<const Decoder>(Decoder::from_json(section));
    t_.decoder_json_ = section.dump();
    require(t_.decoder_->byte_level() == bytes, "io",
            "tokenizer.json: decoder {} is not supported with {} ByteLevel among the pre_tokenizers",
            section.is_null() ? "null" : type_of(section), bytes ? "a" : "no");
    if (bytes) set_byte_level_decoder(t_);
  }

  const Json& root_;
  Tokenizer t_;
};

Tokenizer Tokenizer::parse(std::string_view text, std::string_view name) {
  Json root;
  try {
    root = Json::parse(text);
  } catch (const Json::parse_error& e) {
    fail("io", "{}: not JSON: {}", name, json_mistake(text, e.byte));
  } catch (const Json::exception&) {
    fail("io", "{}: not JSON: a number that is too large", name);
  }
  try {
    return TokenizerReader(root).read();
  } catch (const Error& e) {
    if (name == kFileName) throw;
    throw Error(fmt::format("{} (in {})", e.what(), name));
  }
}

Tokenizer Tokenizer::from_bpe(BpeVocab vocab, std::vector<AddedToken> special) {
  constexpr std::string_view kSections =
      R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}})";
  return from_model(std::make_shared<const BpeModel>(std::move(vocab)), kSections, std::move(special));
}

Tokenizer Tokenizer::from_model(std::shared_ptr<const TokenModel> model, std::string_view sections,
                                std::vector<AddedToken> added) {
  const Json root = Json::parse(sections);
  return TokenizerReader(root).read(std::move(model), std::move(added));
}

Tokenizer Tokenizer::load(const std::filesystem::path& file_or_folder) {
  if (is_gguf(file_or_folder)) return tokenizer_of(GgufFile::open(file_or_folder).metadata());
  const bool folder = fs::is_directory(file_or_folder);
  const fs::path file = folder ? file_or_folder / kFileName : file_or_folder;
  Tokenizer t = parse(read_file(file), file.string());
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  if (!folder || !fs::exists(config)) return t;
  const Json root = Json::parse(read_file(config), nullptr, false);
  if (!root.is_object() || !root.contains("eos_token")) return t;
  // Written as a name, or as a whole added token.
  const Json& eos = root["eos_token"];
  if (eos.is_string()) TokenizerReader::set_end_of_text(t, eos.get<std::string>());
  if (eos.is_object() && eos.contains("content") && eos["content"].is_string())
    TokenizerReader::set_end_of_text(t, eos["content"].get<std::string>());
  return t;
}

}  // namespace hpcdl::io
