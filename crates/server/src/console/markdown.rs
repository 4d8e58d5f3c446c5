//! As much Markdown as our own pages use: headings, paragraphs, lists within lists, blocks of code and
//! `code` within a line. Everything else is text, and all text is escaped.

use maud::{Markup, html};

/// How deep lists may stand within lists; what is deeper is text.
const MAX_DEPTH: usize = 4;

#[derive(Debug, PartialEq, Eq)]
enum Block {
    Heading(usize, String),
    Paragraph(String),
    Code(String),
    List { ordered: bool, items: Vec<Vec<Block>> },
}

pub(super) fn draw(text: &str) -> Markup {
    let lines: Vec<&str> = text.lines().collect();
    draw_blocks(&parse(&lines, 0))
}

fn draw_blocks(blocks: &[Block]) -> Markup {
    html! { @for block in blocks { (draw_block(block)) } }
}

fn draw_block(block: &Block) -> Markup {
    match block {
        Block::Heading(1, text) => html! { h1 { (inline(text)) } },
        Block::Heading(2, text) => html! { h2 { (inline(text)) } },
        Block::Heading(_, text) => html! { h3 { (inline(text)) } },
        Block::Paragraph(text) => html! { p { (inline(text)) } },
        Block::Code(text) => html! { pre { code { (text) } } },
        Block::List { ordered: true, items } => html! { ol { (draw_items(items)) } },
        Block::List { ordered: false, items } => html! { ul { (draw_items(items)) } },
    }
}

fn draw_items(items: &[Vec<Block>]) -> Markup {
    html! {
        @for item in items {
            li {
                @match item.split_first() {
                    // The words of an item need no paragraph of their own.
                    Some((Block::Paragraph(text), rest)) => { (inline(text)) (draw_blocks(rest)) }
                    Some(_) | None => (draw_blocks(item))
                }
            }
        }
    }
}

/// Text with `code` in it. A backtick that is never closed is a backtick.
pub(super) fn inline(text: &str) -> Markup {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        let Some((code, tail)) = after.split_once('`') else { break };
        parts.push((before, code));
        rest = tail;
    }
    html! { @for (before, code) in parts { (before) code { (code) } } (rest) }
}

fn parse(lines: &[&str], depth: usize) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let (block, used) = if line.trim().is_empty() {
            at += 1;
            continue;
        } else if let Some(heading) = heading(line) {
            (heading, 1)
        } else if line.starts_with("```") {
            code(&lines[at..])
        } else if depth < MAX_DEPTH && marker(line).is_some() {
            list(&lines[at..], depth)
        } else {
            paragraph(&lines[at..], depth)
        };
        blocks.push(block);
        at += used;
    }
    blocks
}

fn heading(line: &str) -> Option<Block> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let text = line[level..].strip_prefix(' ')?;
    (1..=6).contains(&level).then(|| Block::Heading(level, text.trim().to_string()))
}

fn code(lines: &[&str]) -> (Block, usize) {
    let inside = lines[1..].iter().take_while(|line| !line.starts_with("```")).count();
    let text = lines[1..=inside].join("\n");
    (Block::Code(text), (inside + 2).min(lines.len()))
}

fn paragraph(lines: &[&str], depth: usize) -> (Block, usize) {
    let ends = |line: &str| {
        line.trim().is_empty()
            || line.starts_with("```")
            || heading(line).is_some()
            || (depth < MAX_DEPTH && marker(line).is_some())
    };
    // The first line is text, whatever it looks like: it was nothing else.
    let used = 1 + lines[1..].iter().take_while(|line| !ends(line)).count();
    let words: Vec<&str> = lines[..used].iter().map(|line| line.trim()).collect();
    (Block::Paragraph(words.join(" ")), used)
}

/// Whether a line begins an item: whether it is numbered, and how wide its mark is.
fn marker(line: &str) -> Option<(bool, usize)> {
    if line.starts_with("- ") || line.starts_with("* ") {
        return Some((false, 2));
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0 && line[digits..].starts_with(". ")).then_some((true, digits + 2))
}

fn list(lines: &[&str], depth: usize) -> (Block, usize) {
    let ordered = marker(lines[0]).is_some_and(|(ordered, _)| ordered);
    let mut items = Vec::new();
    let mut at = 0;
    while let Some((kind, width)) = lines.get(at).and_then(|line| marker(line))
        && kind == ordered
    {
        let mut item = vec![&lines[at][width..]];
        at += 1;
        while let Some(line) = lines.get(at)
            && belongs(line, lines.get(at + 1))
        {
            item.push(dedent(line, width));
            at += 1;
        }
        items.push(parse(&item, depth + 1));
    }
    (Block::List { ordered, items }, at)
}

/// An indented line goes on with the item, and so does a blank one before an indented one.
fn belongs(line: &str, next: Option<&&str>) -> bool {
    let indented = |line: &str| line.starts_with("  ") && !line.trim().is_empty();
    indented(line) || (line.trim().is_empty() && next.is_some_and(|next| indented(next)))
}

fn dedent(line: &str, width: usize) -> &str {
    let spaces = line.bytes().take_while(|byte| *byte == b' ').count();
    &line[spaces.min(width)..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::Code;

    #[test]
    fn everything_is_escaped() {
        let page =
            "# <b>\n\n<script>x</script> and `<i>` and a ` tick\n\n```\n<pre> & \"\n```\n- <li>";
        let drawn = draw(page).into_string();
        assert_eq!(
            drawn,
            "<h1>&lt;b&gt;</h1><p>&lt;script&gt;x&lt;/script&gt; and <code>&lt;i&gt;</code> and a ` tick</p>\
             <pre><code>&lt;pre&gt; &amp; &quot;</code></pre><ul><li>&lt;li&gt;</li></ul>"
        );
    }

    #[test]
    fn lists_stand_within_lists() {
        let page = "1. Look:\n   - one\n   - two\n2. Then\n   go on\n\nText\nof two lines.";
        assert_eq!(
            draw(page).into_string(),
            "<ol><li>Look:<ul><li>one</li><li>two</li></ul></li><li>Then go on</li></ol><p>Text of two lines.</p>"
        );
    }

    #[test]
    fn nothing_makes_it_stumble() {
        for odd in ["", "```", "```\nopen", "1. ", "- ", "#", "#x", "   - deep", "` ` `", "é. x"] {
            drop(draw(odd));
        }
        let deep: String = (0..40).map(|depth| format!("{}- x\n", "  ".repeat(depth))).collect();
        drop(draw(&deep));
    }

    #[test]
    fn our_pages_leave_no_marks_behind() {
        for code in Code::ALL {
            let drawn = draw(code.page()).into_string();
            assert!(!drawn.contains("## ") && !drawn.contains('`'), "{}: {drawn}", code.as_str());
        }
    }
}
