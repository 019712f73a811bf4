// Says so while the server does not answer or after a sleep: what the page shows is old then. Turns a chosen or dropped
// file into base64. Everything else is htmx and HTML.
(function () {
  'use strict'
  var said = ''
  function say() {
    var notice = document.getElementById('offline')
    if (notice && notice.textContent !== said) {
      notice.textContent = said
      notice.hidden = !said
    }
  }
  function tell(text) {
    said = text
    say()
  }
  document.addEventListener('htmx:afterSettle', say) // the whole content may be new, and the notice with it
  document.addEventListener('htmx:sendError', function () {
    tell('The page\'s server does not answer, so what you see may be old. `shiplift up` starts it. This page tries again by itself.')
  })
  // A closed laptop or a frozen tab stops the clock of a page, and its connection may have died without an error. So a
  // page that slept says so until it was told something new, and one that hears no beat connects again.
  var SLEPT = 90000 // ms; browsers let hidden pages look at the clock once a minute
  var SILENT = 35000 // ms; the stream beats every 10 s
  var SHOWN = 15000 // ms that a page says that it has caught up
  var stream = null
  var looked = Date.now()
  var heard = Date.now()
  var asleep = 0
  var until = 0
  function inWords(ms) {
    var minutes = Math.round(ms / 60000)
    return minutes < 90 ? minutes + ' min' : Math.round(minutes / 60) + ' h'
  }
  function isNew() {
    heard = Date.now()
    if (asleep) {
      tell('This page slept for ' + inWords(asleep) + '. What you see now is up to date.')
      until = heard + SHOWN
      asleep = 0
    } else if (heard > until) {
      tell('')
    }
  }
  function look() {
    var now = Date.now()
    var gap = now - looked
    looked = now
    if (gap > SLEPT) {
      asleep += gap
      tell('This page slept for ' + inWords(asleep) + ', so what you see is old. It is being loaded again.')
    }
    if (until && now > until) {
      until = 0
      tell('')
    }
    if (stream && stream.readyState !== EventSource.CLOSED && now - heard > SILENT) {
      heard = now
      stream.close()
      stream.onerror(new Event('error')) // the extension of htmx connects again
    }
  }
  setInterval(look, 1000)
  document.addEventListener('visibilitychange', look)
  document.addEventListener('htmx:afterOnLoad', isNew)
  document.addEventListener('htmx:sseError', function () { tell('The connection was lost. This page connects again by itself.') })
  document.addEventListener('htmx:sseBeforeMessage', function (event) {
    var log = event.target
    if (log.classList.contains('log') && log.scrollHeight - log.scrollTop - log.clientHeight < 40) {
      setTimeout(function () { log.scrollTop = log.scrollHeight }) // the reader is at its end: it stays there
    }
  })
  document.addEventListener('htmx:sseOpen', function (event) {
    stream = event.detail.source
    heard = Date.now()
    ;['now', 'stages', 'log', 'beat', 'ended'].forEach(function (name) { stream.addEventListener(name, isNew) })
    if (!asleep) { tell('') }
  })

  var MOST = 12 * 1024 * 1024 // bytes: as base64, a third more, which the scoring server still takes
  var PICTURES = { '/9j/': 'image/jpeg', iVBORw0KGgo: 'image/png' }
  function show(field) {
    var picture = document.getElementById(field.id + '-shown')
    var start = Object.keys(PICTURES).find(function (each) { return field.value.startsWith(each) })
    picture.hidden = !start
    if (start) { picture.src = 'data:' + PICTURES[start] + ';base64,' + field.value }
  }
  document.querySelectorAll('input[type=file][data-into]').forEach(function (chooser) {
    var field = document.getElementById(chooser.dataset.into)
    var told = document.getElementById(field.id + '-told')
    chooser.hidden = false
    show(field)
    field.addEventListener('change', function () { show(field) })
    chooser.addEventListener('change', function () {
      var file = chooser.files[0]
      if (!file) { return }
      told.textContent = ''
      if (file.size > MOST) {
        told.textContent = 'This file has ' + Math.ceil(file.size / 1048576) + ' MiB, at most ' + MOST / 1048576 + ' can be sent.'
        return
      }
      var reader = new FileReader()
      reader.onerror = function () { told.textContent = 'This file can not be read.' }
      reader.onload = function () {
        field.value = reader.result.slice(reader.result.indexOf(',') + 1)
        show(field)
      }
      reader.readAsDataURL(file)
    })
  })
})()
