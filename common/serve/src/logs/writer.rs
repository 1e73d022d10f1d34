//! The writer's thread. Only this thread waits for standard error and for disks.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;

use super::file::LogFile;
use super::line::Style;
use super::queue::{Line, Queue};
use super::{LogError, Options, Severity};

/// How many bytes are written at once.
const CHUNK: usize = 64 * 1024;

/// Opens the outputs and starts the thread.
pub(super) fn start(options: &Options, queue: Arc<Queue>) -> Result<(), LogError> {
    let (mut writer, style) = (Writer::new(options)?, Style::new(options));
    let run = move || {
        let mut said = 0;
        while let Some(lines) = queue.take() {
            let lost = writer.write(lines.iter());
            queue.lost.inc_by(lost);
            let total = queue.lost.get();
            if total > said && lost == 0 {
                let notice = Line { severity: Severity::Warning, text: style.lost(total - said) };
                if writer.write([&notice].into_iter()) == 0 {
                    said = total;
                }
            }
        }
    };
    thread::Builder::new().name("log".to_owned()).spawn(run).map_err(LogError::of_thread)?;
    Ok(())
}

/// All outputs.
#[derive(Debug)]
struct Writer {
    options: Options,
    stderr: Output<io::Stderr>,
    /// One file for `--log-file`; with `--log-dir` one per severity, opened when needed.
    files: [Option<Output<LogFile>>; 3],
}

/// One output, and its buffered lines.
#[derive(Debug)]
pub(super) struct Output<W> {
    to: W,
    /// Its name in the report of a failure; `None` is standard error, on which failures are reported.
    name: Option<String>,
    chunk: Vec<u8>,
    lines: u64,
    failing: bool,
}

impl<W: Write> Output<W> {
    pub(super) fn new(to: W, name: Option<String>) -> Self {
        Self { to, name, chunk: Vec::new(), lines: 0, failing: false }
    }

    /// Buffers a line. Returns the number of lost lines.
    pub(super) fn add(&mut self, line: &Line) -> u64 {
        self.chunk.extend_from_slice(line.text.as_bytes());
        self.lines += 1;
        if self.chunk.len() >= CHUNK { self.flush() } else { 0 }
    }

    /// Writes the buffer. Returns the number of lost lines, and reports the first failure.
    pub(super) fn flush(&mut self) -> u64 {
        if self.chunk.is_empty() {
            return 0;
        }
        let result = self.to.write_all(&self.chunk);
        self.chunk.clear();
        let lines = std::mem::take(&mut self.lines);
        let failed_before = std::mem::replace(&mut self.failing, result.is_err());
        let Err(error) = result else { return 0 };
        if let Some(name) = self.name.as_ref().filter(|_| !failed_before) {
            super::fatal(&format!("log file {name} cannot be written, lines are lost: {error}"));
        }
        lines
    }
}

impl Output<LogFile> {
    /// Like [`Output::add`], after a rotation if the file is full.
    pub(super) fn add_or_rotate(&mut self, line: &Line) -> u64 {
        let mut lost = 0;
        if self.to.is_full(self.chunk.len() + line.text.len()) {
            lost = self.flush();
            // If the next file cannot be created, the current one continues.
            let _ = self.to.rotate();
        }
        lost + self.add(line)
    }
}

impl Writer {
    fn new(options: &Options) -> Result<Self, LogError> {
        let stderr = Output::new(io::stderr(), None);
        let mut writer = Self { options: options.clone(), stderr, files: [None, None, None] };
        if !options.logtostderr {
            writer.file(0)?;
        }
        Ok(writer)
    }

    /// Writes the lines to all outputs. Returns the number of failed deliveries.
    fn write<'a>(&mut self, lines: impl Iterator<Item = &'a Line>) -> u64 {
        let mut lost = 0;
        for line in lines {
            if self.reaches_stderr(line.severity) {
                lost += self.stderr.add(line);
            }
            for index in self.files_of(line.severity) {
                lost += self.add_to_file(index, line);
            }
        }
        lost + self.stderr.flush() + self.files.iter_mut().flatten().map(Output::flush).sum::<u64>()
    }

    fn reaches_stderr(&self, severity: Severity) -> bool {
        let options = &self.options;
        if options.logtostderr {
            options.legacy_stderr_threshold_behavior || severity >= options.stderrthreshold
        } else if options.alsologtostderr {
            severity >= options.alsologtostderrthreshold
        } else {
            severity >= options.stderrthreshold
        }
    }

    fn files_of(&self, severity: Severity) -> std::ops::Range<usize> {
        let own = (severity as usize).min(self.files.len() - 1);
        match &self.options {
            options if options.logtostderr => 0..0,
            options if options.log_file.is_some() => 0..1,
            options if options.one_output => own..own + 1,
            _ => 0..own + 1,
        }
    }

    /// The file with this index, which is opened if it is not open.
    fn file(&mut self, index: usize) -> Result<&mut Output<LogFile>, LogError> {
        const SEVERITIES: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Error];
        let slot = &mut self.files[index];
        let file = match slot.take() {
            Some(file) => file,
            None => {
                let file = LogFile::open(&self.options, SEVERITIES[index])?;
                let name = Some(file.name());
                Output::new(file, name)
            }
        };
        Ok(slot.insert(file))
    }

    fn add_to_file(&mut self, index: usize, line: &Line) -> u64 {
        let Ok(output) = self.file(index) else { return 1 };
        output.add_or_rotate(line)
    }
}
