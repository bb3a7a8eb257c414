use std::fs;
use std::path::{Path, PathBuf};

/// A source file, its comments apart from its code and its literals emptied.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The file, from the root of the project.
    pub(crate) path: String,
    code: String,
    pub(crate) comments: String,
    pub(crate) lines: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (mut code, mut comments, mut rest) = (String::new(), String::new(), text);
        while !rest.is_empty() {
            let (kind, bytes) = piece(rest);
            let (piece, following) = rest.split_at(bytes);
            match kind {
                Piece::Code => code.push_str(piece),
                Piece::Comment => comments.push_str(piece),
                Piece::Literal => code.push_str(" \"\" "),
            }
            rest = following;
        }
        Self { path: path.to_owned(), code, comments, lines: text.lines().count() }
    }

    /// All sources in a directory of the project and in those below it.
    pub(crate) fn all_in(directory: &str) -> Vec<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (mut sources, mut directories) = (Vec::new(), vec![root.join(directory)]);
        while let Some(directory) = directories.pop() {
            let entries = fs::read_dir(directory).expect("a directory");
            let paths: Vec<PathBuf> =
                entries.map(|entry| entry.expect("an entry").path()).collect();
            for path in paths {
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).expect("a source");
                    let path = path.strip_prefix(root).expect("a path in the project");
                    sources.push(Self::new(path.to_str().expect("a plain path"), &text));
                }
            }
        }
        assert!(sources.len() > 5, "only {} sources were found", sources.len());
        sources
    }

    /// The words, the `::` and the other characters of its code.
    pub(crate) fn tokens(&self) -> Vec<&str> {
        tokens(&self.code)
    }

    /// Every path that it imports or writes out, segment by segment.
    pub(crate) fn paths(&self) -> Vec<Vec<&str>> {
        paths(&self.tokens())
    }

    /// The path of the module that the file is, without the crate.
    pub(crate) fn module(&self) -> Vec<&str> {
        let path = self.path.strip_prefix("src/").unwrap_or_default();
        let path = path.strip_suffix(".rs").unwrap_or_default();
        path.split('/').filter(|part| !["", "mod", "lib", "main"].contains(part)).collect()
    }
}

enum Piece {
    Code,
    Comment,
    Literal,
}

/// The first piece of a source text, and how many bytes it has.
fn piece(text: &str) -> (Piece, usize) {
    let word = text.find(|c: char| !is_word(c)).unwrap_or(text.len());
    let after = &text[word..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let raw = ["r", "br", "cr"].contains(&&text[..word]) && after[hashes..].starts_with('"');
    let mut chars = text.chars();
    match (chars.next(), chars.next(), chars.next()) {
        (Some('/'), Some('/'), _) => (Piece::Comment, text.find('\n').unwrap_or(text.len())),
        (Some('/'), Some('*'), _) => (Piece::Comment, block_comment(text)),
        _ if raw => {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = word + hashes + 1;
            let bytes = text[start..].find(&end).map(|at| start + at + end.len());
            (Piece::Literal, bytes.unwrap_or(text.len()))
        }
        _ if word > 0 => (Piece::Code, word),
        (Some('"'), ..) => (Piece::Literal, literal(text, '"')),
        (Some('\''), Some('\\'), _) | (Some('\''), Some(_), Some('\'')) => {
            (Piece::Literal, literal(text, '\''))
        }
        (first, ..) => (Piece::Code, first.map_or(0, char::len_utf8)),
    }
}

fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest.starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn tokens(code: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let bytes = match rest.find(|c: char| !is_word(c)) {
            _ if rest.starts_with("::") => 2,
            Some(0) => first.len_utf8(),
            word => word.unwrap_or(rest.len()),
        };
        let (token, following) = rest.split_at(bytes);
        tokens.push(token);
        rest = following.trim_start();
    }
    tokens
}

fn paths<'a>(tokens: &[&'a str]) -> Vec<Vec<&'a str>> {
    let (mut found, mut at) = (Vec::new(), 0);
    let token = |at: usize| tokens.get(at).copied().unwrap_or_default();
    while at < tokens.len() {
        match token(at) {
            "use" => {
                at += 1 + usize::from(token(at + 1) == "::");
                expand(tokens, &mut at, &[], &mut found);
            }
            // What follows is a field or a method, and no path.
            "." => at += 2,
            word if word.starts_with(is_word) && token(at + 1) == "::" => {
                expand(tokens, &mut at, &[], &mut found);
            }
            _ => at += 1,
        }
    }
    found
}

/// Reads the path at `at`, or the group of paths, which all begin with `prefix`.
fn expand<'a>(
    tokens: &[&'a str],
    at: &mut usize,
    prefix: &[&'a str],
    found: &mut Vec<Vec<&'a str>>,
) {
    let mut path = prefix.to_vec();
    while let Some(&token) = tokens.get(*at) {
        match token {
            "{" => {
                while !matches!(tokens.get(*at), None | Some(&"}")) {
                    // Over the brace or the comma.
                    *at += 1;
                    expand(tokens, at, &path, found);
                }
                *at += 1;
                return;
            }
            _ if token == "*" || token.starts_with(is_word) => path.push(token),
            _ => break,
        }
        *at += 1;
        if tokens.get(*at) != Some(&"::") {
            break;
        }
        *at += 1;
    }
    if tokens.get(*at) == Some(&"as") {
        *at += 2;
    }
    found.push(path);
}
